//! The policies that confine agents, and their bindings: a test can remove each, and put it back.

use std::collections::BTreeSet;
use std::sync::Mutex;

use axum::response::Response;
use bulkhead_model::objects::names;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::{answer, list, watch};

/// The list of policies, as the end of a path.
pub const POLICIES: &str = "validatingadmissionpolicies";
/// The list of their bindings.
pub const BINDINGS: &str = "validatingadmissionpolicybindings";

/// What is in force.
pub struct Policies {
    policies: Kind,
    bindings: Kind,
}

struct Kind {
    missing: Mutex<BTreeSet<&'static str>>,
    events: broadcast::Sender<Value>,
}

impl Default for Policies {
    fn default() -> Self {
        let kind = || Kind { missing: Mutex::default(), events: broadcast::Sender::new(64) };
        Self { policies: kind(), bindings: kind() }
    }
}

impl Policies {
    /// Removes the object called `name` from the list called `of`, and tells the watches.
    pub fn lose(&self, of: &str, name: &'static str) {
        let (kind, object) = self.find(of, name);
        kind.missing.lock().unwrap().insert(name);
        let _ = kind.events.send(json!({ "type": "DELETED", "object": object }));
    }

    /// Puts it back.
    pub fn put_back(&self, of: &str, name: &'static str) {
        let (kind, object) = self.find(of, name);
        kind.missing.lock().unwrap().remove(name);
        let _ = kind.events.send(json!({ "type": "ADDED", "object": object }));
    }

    /// Returns whether the list called `of` is watched, so that what is lost now is noticed.
    pub fn is_watched(&self, of: &str) -> bool {
        self.find(of, "").0.events.receiver_count() > 0
    }

    /// The answer to a request for the list called [`POLICIES`] or [`BINDINGS`].
    pub fn answer(&self, of: &str, query: &str) -> Response {
        let (kind, _) = self.find(of, "");
        if query.contains("watch=true") {
            return watch(Vec::new(), Some(kind.events.subscribe()));
        }
        let missing = kind.missing.lock().unwrap();
        answer(200, &list_without(of, |name| missing.contains(name), query))
    }

    fn find(&self, of: &str, name: &str) -> (&Kind, Value) {
        if of == POLICIES { (&self.policies, policy(name)) } else { (&self.bindings, binding(name)) }
    }
}

/// The answer to a request for the list called [`POLICIES`] or [`BINDINGS`], in which one is missing.
pub fn confined_without(path: &str, missing: &str) -> Option<Value> {
    let of = path.rsplit('/').next().filter(|of| [POLICIES, BINDINGS].contains(of))?;
    Some(list_without(of, |name| name == missing, ""))
}

fn list_without(of: &str, is_missing: impl Fn(&str) -> bool, query: &str) -> Value {
    let names = names::AGENT_POLICIES.into_iter().filter(|name| !is_missing(name));
    let version = "admissionregistration.k8s.io/v1";
    if of == POLICIES {
        list(version, "ValidatingAdmissionPolicy", &names.map(policy).collect::<Vec<_>>(), query)
    } else {
        list(version, "ValidatingAdmissionPolicyBinding", &names.map(binding).collect::<Vec<_>>(), query)
    }
}

/// A policy that confines agents.
fn policy(name: &str) -> Value {
    let agent = "request.userInfo.username.matches('^system:serviceaccount:[^:]+:bulkhead-agent$')";
    let mut conditions = json!([{ "name": "agent", "expression": agent }]);
    if name == names::BINDING_POLICY {
        conditions = json!([]);
    }
    let everything = json!({ "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"] });
    let spec = json!({ "matchConditions": conditions, "matchConstraints": { "resourceRules": [everything] },
                       "validations": [{ "expression": "variables.own" }] });
    // Its expressions are not compared with those of this release.
    let metadata = json!({ "name": name, "resourceVersion": "2", "labels": { "app.kubernetes.io/version": "0.0.1" } });
    json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata, "spec": spec })
}

/// What puts it in force.
fn binding(name: &str) -> Value {
    let spec = json!({ "policyName": name, "validationActions": ["Deny"] });
    json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": { "name": name, "resourceVersion": "2" }, "spec": spec })
}
