//! The right to make volumes of a class, as docs/kubernetes.md says how to give it.

use anyhow::{Result, ensure};
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{from_value, json};

use super::PATIENCE;
use super::access::Access;
use super::manifests::{NAMESPACE, SERVICE_ACCOUNT};

/// The verbs that are granted on a class.
const VERBS: [&str; 3] = ["provision", "take", "restore"];

/// Grants the agents everything on a class, and waits until the API server knows.
pub fn give(access: &Access, class: &str) -> Result<()> {
    let name = name(class);
    let resource = "storageclasses";
    let rule =
        json!({ "apiGroups": ["storage.k8s.io"], "resources": [resource], "resourceNames": [class], "verbs": VERBS });
    let role = json!({ "metadata": { "name": name }, "rules": [rule] });
    let binding = json!({
        "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name },
        "subjects": [{ "kind": "ServiceAccount", "name": SERVICE_ACCOUNT, "namespace": NAMESPACE }],
    });
    let (roles, bindings): (Api<ClusterRole>, Api<ClusterRoleBinding>) =
        (Api::all(access.client()), Api::all(access.client()));
    access.run(roles.create(&PostParams::default(), &from_value(role)?))?;
    access.run(bindings.create(&PostParams::default(), &from_value(binding)?))?;
    let asked = json!({ "spec": {
        "user": format!("system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"),
        "resourceAttributes": {
            "group": "storage.k8s.io", "resource": resource, "name": class, "verb": VERBS[0],
        },
    } });
    let (reviews, asked): (Api<SubjectAccessReview>, SubjectAccessReview) =
        (Api::all(access.client()), from_value(asked)?);
    access.wait(PATIENCE, "the right to be known", || {
        let answer = access.run(reviews.create(&PostParams::default(), &asked))?;
        ensure!(answer.status.is_some_and(|status| status.allowed), "it is not");
        Ok(())
    })
}

/// Takes it back, if it was given.
pub fn take_back(access: &Access, class: &str) {
    let name = name(class);
    let (roles, bindings): (Api<ClusterRole>, Api<ClusterRoleBinding>) =
        (Api::all(access.client()), Api::all(access.client()));
    let _ = access.run(bindings.delete(&name, &DeleteParams::default()));
    let _ = access.run(roles.delete(&name, &DeleteParams::default()));
}

fn name(class: &str) -> String {
    format!("bulkhead-class-{class}")
}
