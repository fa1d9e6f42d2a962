//! What a policy has to match: one that is bound, but matches nothing that an agent could write, confines nobody.

use k8s_openapi::api::admissionregistration::v1::{
    MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::objects::names::{BINDING_POLICY, GROUP_SNAPSHOT_GROUP, SNAPSHOT_GROUP};

/// What has to be judged of objects of one kind, by a policy's name: all that an agent's rights let it do, and all that
/// binds a claim.
const WRITABLE: [(&str, Writable); 9] = [
    (
        "bulkhead-agent-volumes",
        Writable { group: "", resources: &["persistentvolumes"], operations: &["CREATE", "UPDATE", "DELETE"] },
    ),
    (
        "bulkhead-agent-claims",
        Writable {
            group: "",
            resources: &["persistentvolumeclaims", "persistentvolumeclaims/status"],
            operations: &["UPDATE"],
        },
    ),
    (BINDING_POLICY, Writable { group: "", resources: &["persistentvolumeclaims"], operations: &["UPDATE"] }),
    (
        "bulkhead-agent-capacities",
        Writable {
            group: "storage.k8s.io",
            resources: &["csistoragecapacities"],
            operations: &["CREATE", "UPDATE", "DELETE"],
        },
    ),
    (
        "bulkhead-agent-events",
        Writable { group: "events.k8s.io", resources: &["events"], operations: &["CREATE", "UPDATE"] },
    ),
    (
        "bulkhead-agent-leases",
        Writable { group: "coordination.k8s.io", resources: &["leases"], operations: &["CREATE", "UPDATE"] },
    ),
    ("bulkhead-agent-tokens", Writable { group: "", resources: &["serviceaccounts/token"], operations: &["CREATE"] }),
    (
        "bulkhead-agent-contents",
        Writable {
            group: SNAPSHOT_GROUP,
            resources: &["volumesnapshotcontents", "volumesnapshotcontents/status"],
            operations: &["UPDATE"],
        },
    ),
    (
        "bulkhead-agent-groups",
        Writable {
            group: GROUP_SNAPSHOT_GROUP,
            resources: &["volumegroupsnapshotcontents", "volumegroupsnapshotcontents/status"],
            operations: &["UPDATE"],
        },
    ),
];

struct Writable {
    group: &'static str,
    resources: &'static [&'static str],
    operations: &'static [&'static str],
}

/// Returns whether the policy called `name`, as it is bound, matches every write that it is there to judge.
pub fn matches_all(name: &str, policy: &ValidatingAdmissionPolicy, binding: &ValidatingAdmissionPolicyBinding) -> bool {
    let Some((_, writable)) = WRITABLE.iter().find(|(known, _)| *known == name) else { return false };
    let of_policy = policy.spec.as_ref().and_then(|spec| spec.match_constraints.as_ref());
    let of_binding = binding.spec.as_ref().and_then(|spec| spec.match_resources.as_ref());
    let judges = policy.spec.as_ref().is_some_and(|spec| spec.validations.as_ref().is_some_and(|all| !all.is_empty()));
    // A binding may narrow down what its policy matches; without rules of its own it does not.
    let is_narrowed = |binding: &MatchResources| {
        let has_rules = binding.resource_rules.as_ref().is_some_and(|rules| !rules.is_empty());
        has_exceptions(binding) || has_rules && !has_all(binding, writable)
    };
    let is_whole = |policy: &MatchResources| !has_exceptions(policy) && has_all(policy, writable);
    judges && of_policy.is_some_and(is_whole) && !of_binding.is_some_and(is_narrowed)
}

/// Returns whether some objects are left out: by their labels, those of their namespaces, or by rules.
fn has_exceptions(matched: &MatchResources) -> bool {
    let selects = |selector: &LabelSelector| *selector != LabelSelector::default() && !is_empty(selector);
    matched.namespace_selector.as_ref().is_some_and(selects)
        || matched.object_selector.as_ref().is_some_and(selects)
        || matched.exclude_resource_rules.as_ref().is_some_and(|rules| !rules.is_empty())
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(|labels| labels.is_empty())
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

fn has_all(matched: &MatchResources, writable: &Writable) -> bool {
    let rules = matched.resource_rules.as_deref().unwrap_or_default();
    let is_matched = |resource: &str, operation: &str| {
        rules.iter().any(|rule| {
            has_any(rule.api_groups.as_ref(), &[writable.group, "*"])
                && has_any(rule.api_versions.as_ref(), &["v1", "*"])
                && has_any(
                    rule.resources.as_ref(),
                    &[resource, "*/*", if resource.contains('/') { "*/*" } else { "*" }],
                )
                && has_any(rule.operations.as_ref(), &[operation, "*"])
                && is_for_every_object(rule)
        })
    };
    let every = |resource: &&str| writable.operations.iter().all(|operation| is_matched(resource, operation));
    writable.resources.iter().all(every)
}

fn is_for_every_object(rule: &NamedRuleWithOperations) -> bool {
    rule.resource_names.as_ref().is_none_or(Vec::is_empty) && rule.scope.as_deref().is_none_or(|scope| scope == "*")
}

fn has_any(found: Option<&Vec<String>>, wanted: &[&str]) -> bool {
    found.is_some_and(|found| found.iter().any(|found| wanted.contains(&found.as_str())))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::objects::names::AGENT_POLICIES;

    const NAME: &str = "bulkhead-agent-volumes";

    fn policy(constraints: Value) -> Value {
        json!({ "spec": { "matchConstraints": constraints, "validations": [{ "expression": "variables.own" }] } })
    }

    fn whole() -> Value {
        json!({ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["persistentvolumes"],
                "operations": ["CREATE", "UPDATE", "DELETE"], "scope": "*" })
    }

    fn matches(policy: Value, matched_by_binding: Value) -> bool {
        let binding = json!({ "spec": { "matchResources": matched_by_binding } });
        matches_all(NAME, &serde_json::from_value(policy).unwrap(), &serde_json::from_value(binding).unwrap())
    }

    #[test]
    fn what_the_api_server_fills_in_leaves_nothing_out() {
        let constraints = json!({ "resourceRules": [whole()], "matchPolicy": "Equivalent",
                                  "namespaceSelector": {}, "objectSelector": {} });
        assert!(matches(policy(constraints.clone()), Value::Null));
        assert!(matches(policy(constraints.clone()), json!({ "namespaceSelector": {}, "matchPolicy": "Equivalent" })));
        assert!(matches(policy(constraints), json!({ "resourceRules": [whole()] })));
        let (mut some, mut others) = (whole(), whole());
        (some["operations"], others["operations"]) = (json!(["CREATE"]), json!(["UPDATE", "DELETE", "CONNECT"]));
        assert!(matches(policy(json!({ "resourceRules": [some, others] })), Value::Null), "together they match all");
    }

    #[test]
    fn a_policy_or_a_binding_that_leaves_something_out_is_hollow() {
        let changed = |key: &str, value: Value| {
            let mut rule = whole();
            rule[key] = value;
            json!({ "resourceRules": [rule] })
        };
        let all = || json!({ "resourceRules": [whole()] });
        let selector = json!({ "matchLabels": { "a": "b" } });
        for narrowed in [
            changed("operations", json!(["CREATE", "UPDATE"])),
            changed("resources", json!(["persistentvolumes/status"])),
            changed("apiGroups", json!(["apps"])),
            changed("apiVersions", json!(["v2"])),
            changed("resourceNames", json!(["one"])),
            changed("scope", json!("Namespaced")),
            json!({ "resourceRules": [whole()], "objectSelector": selector }),
            json!({ "resourceRules": [whole()], "namespaceSelector": selector }),
            json!({ "resourceRules": [whole()], "excludeResourceRules": [whole()] }),
        ] {
            assert!(!matches(policy(narrowed.clone()), Value::Null), "policy {narrowed}");
            assert!(!matches(policy(all()), narrowed.clone()), "binding {narrowed}");
        }
        assert!(!matches(policy(json!({})), Value::Null), "no rule at all");
        let mut without = policy(all());
        without["spec"]["validations"] = json!([]);
        assert!(!matches(without, Value::Null), "it judges nothing");
    }

    #[test]
    fn every_policy_has_something_to_match() {
        let known: Vec<_> = WRITABLE.iter().map(|(name, _)| *name).collect();
        assert_eq!(known, AGENT_POLICIES);
    }
}
