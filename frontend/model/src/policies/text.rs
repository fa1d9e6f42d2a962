//! What the policies of this release say. One that is in force and matches everything may still judge nothing, because
//! somebody has edited it.

use std::collections::BTreeSet;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy as Policy, ValidatingAdmissionPolicySpec as Spec,
};
use kube::ResourceExt;

/// The manifests, by the policy's name.
const MANIFESTS: [(&str, &str); 9] = [
    ("bulkhead-agent-volumes", include_str!("../../../../deploy/kubernetes/base/policy-volumes.yaml")),
    ("bulkhead-agent-claims", include_str!("../../../../deploy/kubernetes/base/policy-claims.yaml")),
    ("bulkhead-agent-bindings", include_str!("../../../../deploy/kubernetes/base/policy-bindings.yaml")),
    ("bulkhead-agent-capacities", include_str!("../../../../deploy/kubernetes/base/policy-capacities.yaml")),
    ("bulkhead-agent-events", include_str!("../../../../deploy/kubernetes/base/policy-events.yaml")),
    ("bulkhead-agent-leases", include_str!("../../../../deploy/kubernetes/base/policy-leases.yaml")),
    ("bulkhead-agent-tokens", include_str!("../../../../deploy/kubernetes/base/policy-tokens.yaml")),
    ("bulkhead-agent-contents", include_str!("../../../../deploy/kubernetes/base/policy-contents.yaml")),
    ("bulkhead-agent-groups", include_str!("../../../../deploy/kubernetes/base/policy-groups.yaml")),
];

/// The driver's name in them.
const DRIVER: &str = "bulkhead.csi.local";

/// On a policy: the release that it belongs to.
const RELEASE: &str = "app.kubernetes.io/version";

/// The first expression of this release's policy called `name` that `policy` lacks. What is added to a policy can only
/// forbid more. One of another release has other expressions, as while one release replaces another: of it is only asked
/// that it judges something.
pub fn lacks(name: &str, driver: &str, policy: &Policy) -> Option<String> {
    let found = policy.spec.as_ref().map(expressions).unwrap_or_default();
    let release = policy.labels().get(RELEASE).map_or(env!("CARGO_PKG_VERSION"), String::as_str);
    if release != env!("CARGO_PKG_VERSION") {
        let judges = |expression: &String| !matches!(expression.as_str(), "validation: true" | "validation: !false");
        let judged = found.iter().filter(|expression| expression.starts_with("validation: ")).any(judges);
        return (!judged).then(|| "any that could be false".to_owned());
    }
    let (_, manifest) = MANIFESTS.iter().find(|(known, _)| *known == name)?;
    let manifest = manifest.replace(DRIVER, driver);
    let first = manifest.split("\n---\n").next().unwrap_or_default();
    // That it can be read is tested.
    let wanted: Policy = serde_saphyr::from_str(first).ok()?;
    wanted.spec.as_ref().map(expressions).unwrap_or_default().into_iter().find(|wanted| !found.contains(wanted))
}

/// Returns what decides, each in one line: the expressions, and the variables that they use.
fn expressions(spec: &Spec) -> BTreeSet<String> {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let variables = spec.variables.iter().flatten();
    let variables = variables.map(|one| format!("variable {}: {}", one.name, one_line(&one.expression)));
    let validations = spec.validations.iter().flatten();
    variables.chain(validations.map(|one| format!("validation: {}", one_line(&one.expression)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::names::AGENT_POLICIES;

    fn of_release(name: &str, driver: &str) -> Policy {
        let (_, manifest) = MANIFESTS.iter().find(|(known, _)| *known == name).unwrap();
        serde_saphyr::from_str(manifest.replace(DRIVER, driver).split("\n---\n").next().unwrap()).unwrap()
    }

    #[test]
    fn the_manifests_are_known_and_lack_nothing() {
        assert_eq!(MANIFESTS.map(|(name, _)| name), AGENT_POLICIES);
        for name in AGENT_POLICIES {
            for driver in [DRIVER, "other.example.com"] {
                let policy = of_release(name, driver);
                assert_eq!((policy.name_any().as_str(), lacks(name, driver, &policy)), (name, None));
                let (key, value) = (format!("{driver}/confines"), "agent".to_owned());
                assert_eq!(policy.labels().get(&key), Some(&value), "it would not be found");
            }
        }
    }

    #[test]
    fn what_was_edited_away_is_named_and_what_was_added_is_not() {
        let name = "bulkhead-agent-leases";
        let whole = of_release(name, DRIVER);
        let edited = |edit: fn(&mut Spec)| {
            let mut policy = whole.clone();
            edit(policy.spec.as_mut().unwrap());
            lacks(name, DRIVER, &policy)
        };
        let hollow = edited(|spec| spec.validations.as_mut().unwrap()[1].expression = "true".to_owned());
        assert_eq!(hollow.as_deref(), Some("validation: object.metadata.name == variables.node"));
        let variable =
            edited(|spec| spec.variables.as_mut().unwrap()[0].expression = "object.metadata.name".to_owned());
        assert!(variable.unwrap().starts_with("variable node: request.userInfo"));
        assert!(edited(|spec| spec.validations = None).is_some());
        let stricter = edited(|spec| {
            let added = spec.validations.as_ref().unwrap()[0].clone();
            spec.validations.as_mut().unwrap().push(added);
        });
        assert_eq!(stricter, None);
    }

    #[test]
    fn a_policy_of_another_release_judges_something() {
        let mut policy = of_release("bulkhead-agent-leases", DRIVER);
        policy.labels_mut().insert(RELEASE.to_owned(), "0.0.1".to_owned());
        let expressions = |policy: &mut Policy, text: &str| {
            let validations = policy.spec.as_mut().unwrap().validations.as_mut().unwrap();
            validations.iter_mut().for_each(|one| one.expression = text.to_owned());
        };
        expressions(&mut policy, "object.metadata.name == 'other'");
        assert_eq!(lacks("bulkhead-agent-leases", DRIVER, &policy), None);
        expressions(&mut policy, " true ");
        assert!(lacks("bulkhead-agent-leases", DRIVER, &policy).is_some());
    }

    #[test]
    fn the_manifests_say_which_release_they_are_of() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/base/kustomization.yaml");
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(&format!("{RELEASE}: {}\n", env!("CARGO_PKG_VERSION"))), "{text}");
    }
}
