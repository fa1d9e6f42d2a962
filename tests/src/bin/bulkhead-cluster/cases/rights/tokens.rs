//! Tokens: an agent that may renew its own has no other by that.

use anyhow::{Context, Result};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::{Cluster, manifests};
use serde_json::{Value, json};

use super::{Holder, Rights, TOKENS, UNBOUND, with_rights};

cases! {
    on Cluster;
    an_agent_has_only_tokens_for_itself: Bare + Alone("grants the renewal of tokens"),
}

const POLICY: &str = "bulkhead-agent-tokens";
// Messages of the policy's expressions.
const POD: &str = "an agent in a pod has its token renewed by the kubelet";
const ACCOUNT: &str = "an agent may renew only the token of its own service account";
const NODE: &str = "an agent may have only tokens that are bound to its own Node";
const LIFE: &str = "an agent may have only tokens that expire within 30 days";
const AUDIENCE: &str = "an agent may have only tokens for audiences that its account is granted, not ";

const DAYS: i64 = 24 * 3600;

fn an_agent_has_only_tokens_for_itself(cluster: &mut Cluster) -> Result<()> {
    let kubeconfig = cluster.access.kubeconfig();
    manifests::with_renewal(&kubeconfig, || with_rights(cluster, renews_only_its_own))
}

/// Returns what an agent asks for, changed by `change`.
fn request(node: &Value, change: impl FnOnce(&mut Value)) -> Value {
    let (name, uid) = (&node["metadata"]["name"], &node["metadata"]["uid"]);
    let mut spec = json!({
        "boundObjectRef": { "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid },
        "expirationSeconds": 30 * DAYS,
    });
    change(&mut spec);
    json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec })
}

fn renews_only_its_own(rights: &Rights<'_>) -> Result<()> {
    let node = |name: &str| rights.administrator.get(&format!("/api/v1/nodes/{name}")).granted();
    let (here, there) = (node(&rights.here)?, node(&rights.there)?);
    let own = request(&here, |_| {});
    rights.cluster.access.wait(rights.cluster.patience(), "the right to be known", || {
        rights.agent.create(TOKENS, &own).granted().map(drop)
    })?;
    let answer = rights.agent.create(TOKENS, &own).granted()?;
    let renewed = answer["status"]["token"].as_str().context("an answer without a token")?;
    let renewed = Holder::of_token(&rights.cluster.access, renewed)?;
    renewed.create(TOKENS, &own).granted()?;

    for holder in [&rights.agent, &renewed] {
        for (refused, message) in [
            (request(&there, |_| {}), NODE),
            (request(&here, |spec| spec["boundObjectRef"] = Value::Null), NODE),
            (request(&here, |spec| drop(spec["boundObjectRef"]["uid"].take())), NODE),
            (request(&here, |spec| spec["expirationSeconds"] = json!(30 * DAYS + 1)), LIFE),
            (request(&here, |spec| spec["audiences"] = json!(["vault"])), &format!("{AUDIENCE}vault")),
        ] {
            holder.create(TOKENS, &refused).refused_by(POLICY, message)?;
        }
    }
    rights.other.create(TOKENS, &own).refused_by(POLICY, NODE)?;
    rights.unbound.create(TOKENS, &own).refused_by(POLICY, UNBOUND)?;
    rights.in_a_pod()?.create(TOKENS, &own).refused_by(POLICY, POD)?;

    let others = "/api/v1/namespaces/bulkhead-system/serviceaccounts/default/token";
    rights.agent.create(others, &own).refused_by_role()?;
    // Not even if somebody grants it.
    let namespace = &rights.cluster.namespace;
    let role = json!({ "metadata": { "name": "tokens" }, "rules": [
        { "apiGroups": [""], "resources": ["serviceaccounts/token"], "verbs": ["create"] },
    ] });
    let binding = json!({
        "metadata": { "name": "tokens" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "tokens" },
        "subjects": [{ "kind": "ServiceAccount", "name": "bulkhead-agent", "namespace": "bulkhead-system" }],
    });
    for (kind, object) in [("roles", role), ("rolebindings", binding)] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{kind}");
        rights.administrator.create(&path, &object).granted()?;
    }
    let others = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default/token");
    rights.cluster.access.wait(rights.cluster.patience(), "the right to be known", || {
        rights.agent.create(&others, &own).refused_by(POLICY, ACCOUNT)
    })
}
