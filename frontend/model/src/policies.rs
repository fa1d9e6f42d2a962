//! The admission policies that confine an agent to its own node's objects. Without them its token could do the same to
//! every node's, so an agent works only while it finds them in force for its own account.

mod reach;
mod text;

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::ResourceExt;

use crate::objects::names::{AGENT_POLICIES, BINDING_POLICY};
use crate::printable::printable;

/// How much is shown of an expression, in bytes.
const LONGEST: usize = 120;

/// `objects` by their names.
pub fn by_name<K: ResourceExt>(objects: impl IntoIterator<Item = K>) -> BTreeMap<String, K> {
    objects.into_iter().map(|object| (object.name_any(), object)).collect()
}

/// Checks that these are all the policies that there have to be, and that they are in force for the user called
/// `account`, an agent of `driver`.
///
/// # Errors
/// In one sentence, what is wrong and what to do.
pub fn judge(
    account: &str,
    driver: &str,
    policies: &BTreeMap<String, ValidatingAdmissionPolicy>,
    bindings: &BTreeMap<String, ValidatingAdmissionPolicyBinding>,
) -> Result<(), String> {
    let mut flaws =
        AGENT_POLICIES.iter().filter_map(|name| flaw(name, account, driver, policies.get(*name), bindings.get(*name)));
    match flaws.next() {
        Some(flaw) => Err(format!(
            "{flaw}, so that nothing would confine this agent to its own node: apply deploy/kubernetes/base"
        )),
        None => Ok(()),
    }
}

/// Returns why the policy called `name` does not bind `account`.
fn flaw(
    name: &str,
    account: &str,
    driver: &str,
    policy: Option<&ValidatingAdmissionPolicy>,
    binding: Option<&ValidatingAdmissionPolicyBinding>,
) -> Option<String> {
    let Some(policy) = policy else { return Some(format!("ValidatingAdmissionPolicy {name} is missing")) };
    let Some(binding) = binding else { return Some(format!("ValidatingAdmissionPolicyBinding {name} is missing")) };
    let spec = policy.spec.as_ref();
    let mut conditions = spec.and_then(|spec| spec.match_conditions.as_deref()).unwrap_or_default().iter();
    if name == BINDING_POLICY && conditions.len() > 0 {
        return Some(format!("ValidatingAdmissionPolicy {name} is for some bindings only"));
    }
    if conditions.any(|condition| !names(&condition.expression, account)) {
        return Some(format!("ValidatingAdmissionPolicy {name} is for another account than {account}"));
    }
    let failure_policy = spec.and_then(|spec| spec.failure_policy.as_deref());
    if failure_policy.is_some_and(|failure_policy| failure_policy != "Fail") {
        return Some(format!("ValidatingAdmissionPolicy {name} is ignored when it cannot be evaluated"));
    }
    if spec.is_some_and(|spec| spec.param_kind.is_some())
        || binding.spec.as_ref().is_some_and(|spec| spec.param_ref.is_some())
    {
        return Some(format!("ValidatingAdmissionPolicy {name} depends on parameters, which may not exist"));
    }
    let spec = binding.spec.as_ref();
    let actions = spec.and_then(|spec| spec.validation_actions.as_deref()).unwrap_or_default();
    let is_bound = spec.and_then(|spec| spec.policy_name.as_deref()) == Some(name);
    if !is_bound || !actions.iter().any(|action| action == "Deny") {
        return Some(format!("ValidatingAdmissionPolicyBinding {name} does not put the policy of that name in force"));
    }
    if !reach::matches_all(name, policy, binding) {
        return Some(format!(
            "ValidatingAdmissionPolicy {name}, as it is bound, does not match all that an agent can write"
        ));
    }
    text::lacks(name, driver, policy).map(|expression| {
        let expression = printable(&expression, LONGEST);
        format!("ValidatingAdmissionPolicy {name} was edited, and lacks an expression of this release ({expression})")
    })
}

/// Returns whether a condition holds for the service account called `account`. Those in deploy/ hold for the agents'
/// service account in any namespace; a condition may also name that of a single namespace.
fn names(condition: &str, account: &str) -> bool {
    let parts: Vec<_> = account.split(':').collect();
    let ["system", "serviceaccount", _, name] = parts[..] else { return false };
    condition == format!("request.userInfo.username.matches('^system:serviceaccount:[^:]+:{name}$')")
        || condition == format!("request.userInfo.username == '{account}'")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ACCOUNT: &str = "system:serviceaccount:storage:bulkhead-agent";
    const ANY_NAMESPACE: &str = "request.userInfo.username.matches('^system:serviceaccount:[^:]+:bulkhead-agent$')";

    fn policy(expression: &str, on_failure: &str) -> Value {
        json!({ "metadata": of_another_release(), "spec": { "failurePolicy": on_failure, "matchConstraints": constraints(), "validations": validations(),
                          "matchConditions": [{ "name": "agent", "expression": expression }] } })
    }

    /// Its expressions are not compared.
    fn of_another_release() -> Value {
        json!({ "labels": { "app.kubernetes.io/version": "0.0.1" } })
    }

    fn constraints() -> Value {
        let operations = ["CREATE", "UPDATE", "DELETE"];
        json!({ "resourceRules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["persistentvolumes"],
                                    "operations": operations }] })
    }

    fn validations() -> Value {
        json!([{ "expression": "variables.own" }])
    }

    fn binding(name: &str, action: &str) -> Value {
        json!({ "spec": { "policyName": name, "validationActions": [action] } })
    }

    fn found(account: &str, policy: Value, binding: Value) -> Option<String> {
        let (policy, binding) = (serde_json::from_value(policy).unwrap(), serde_json::from_value(binding).unwrap());
        flaw("bulkhead-agent-volumes", account, "driver", Option::as_ref(&policy), Option::as_ref(&binding))
    }

    #[test]
    fn the_account_is_bound_in_any_namespace() {
        let bound = || binding("bulkhead-agent-volumes", "Deny");
        assert_eq!(found(ACCOUNT, policy(ANY_NAMESPACE, "Fail"), bound()), None);
        assert_eq!(found(ACCOUNT, policy(&format!("request.userInfo.username == '{ACCOUNT}'"), "Fail"), bound()), None);
        let for_everybody = json!({ "metadata": of_another_release(), "spec": { "matchConstraints": constraints(), "validations": validations() } });
        assert_eq!(found(ACCOUNT, for_everybody, bound()), None);
    }

    #[test]
    fn a_policy_that_does_not_bind_the_account_is_found() {
        let bound = || binding("bulkhead-agent-volumes", "Deny");
        let other = "request.userInfo.username == 'system:serviceaccount:bulkhead-system:bulkhead-agent'";
        for (account, policy, binding, flaw) in [
            (ACCOUNT, Value::Null, bound(), "bulkhead-agent-volumes is missing"),
            (ACCOUNT, policy(ANY_NAMESPACE, "Fail"), Value::Null, "Binding bulkhead-agent-volumes is missing"),
            (ACCOUNT, policy(other, "Fail"), bound(), "another account"),
            ("system:serviceaccount:storage:other", policy(ANY_NAMESPACE, "Fail"), bound(), "another account"),
            ("kubernetes-admin", policy(ANY_NAMESPACE, "Fail"), bound(), "another account"),
            (ACCOUNT, policy(ANY_NAMESPACE, "Ignore"), bound(), "ignored"),
            (ACCOUNT, policy(ANY_NAMESPACE, "Fail"), binding("another", "Deny"), "in force"),
            (ACCOUNT, policy(ANY_NAMESPACE, "Fail"), binding("bulkhead-agent-volumes", "Audit"), "in force"),
            (ACCOUNT, json!({ "spec": {} }), bound(), "does not match all"),
        ] {
            let found = found(account, policy, binding).unwrap();
            assert!(found.contains(flaw), "{found}");
        }
        // The controller manager binds claims, not the agent.
        let (policy, binding) = (policy(ANY_NAMESPACE, "Fail"), binding(BINDING_POLICY, "Deny"));
        let (policy, binding) = (serde_json::from_value(policy).unwrap(), serde_json::from_value(binding).unwrap());
        let found = flaw(BINDING_POLICY, ACCOUNT, "driver", Some(&policy), Some(&binding)).unwrap();
        assert!(found.contains("some bindings only"), "{found}");
    }

    #[test]
    fn the_policies_of_this_release_bind_every_namespaces_agent() {
        for name in AGENT_POLICIES {
            let kind = name.trim_start_matches("bulkhead-agent-");
            let path = format!("{}/../../deploy/kubernetes/base/policy-{kind}.yaml", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            let is_for_agents = text.contains(&format!("expression: {ANY_NAMESPACE}\n"));
            assert_eq!(is_for_agents, name != BINDING_POLICY, "{name}");
            assert!(is_for_agents || !text.contains("matchConditions:\n"), "{name}");
            assert!(!text.contains("bulkhead-system:"), "{name} is for one namespace");
        }
    }
}
