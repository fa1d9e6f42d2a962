//! Without the policy that labels claims, everything goes on, only with more to watch.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::manifests;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{claim, on};
use bulkhead_tests::cluster::{Cluster, POLICIES};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use serde_json::json;

cases! {
    on Cluster;
    claims_are_found_without_the_policy: Bare,
}

/// The bindings of policies that change objects, which are younger than the client.
fn bindings(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&());
    let kind = ApiResource {
        kind: "MutatingAdmissionPolicyBinding".to_owned(),
        plural: "mutatingadmissionpolicybindings".to_owned(),
        ..kind
    };
    Api::all_with(cluster.access.client(), &kind)
}

fn claims_are_found_without_the_policy(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|_| {})?;
    let done = lives_without_labels(cluster, &class);
    // Whatever became of it, the tests that follow need them.
    manifests::apply(&cluster.access.kubeconfig(), "base")?;
    std::thread::sleep(POLICIES);
    done
}

fn lives_without_labels(cluster: &mut Cluster, class: &str) -> Result<()> {
    for name in ["bulkhead-claims", "bulkhead-volumes"] {
        cluster.access.run(bindings(cluster).delete(name, &Default::default()))?;
    }
    // A policy goes out of force a moment after it is deleted.
    let probe = on(claim("probe", class, "4Mi"), "elsewhere");
    cluster.create_claim(&probe)?;
    cluster.access.wait(cluster.patience(), "claims to be left without a label", || {
        cluster.delete_claim("probe")?;
        cluster.access.wait_until_gone(&cluster.claims(), "probe", cluster.patience())?;
        cluster.create_claim(&probe)?;
        let found = cluster.access.run(cluster.claims().get("probe"))?;
        let labels = found.metadata.labels.unwrap_or_default();
        ensure!(!labels.contains_key(TOPOLOGY_KEY), "it has {labels:?}");
        Ok(())
    })?;
    cluster.add_agent()?;
    cluster.add_agent()?;
    let node = cluster.agents[1].node.clone();
    cluster.create_claim(&on(claim("data", class, "8Mi"), &node))?;
    cluster.bound("data")?;
    ensure!(cluster.agents[1].log()?.contains("watching the metadata of all claims"), "the log does not say so");
    let immediate = cluster.add_class(|class| class["volumeBindingMode"] = json!("Immediate"))?;
    cluster.create_claim(&claim("anywhere", &immediate, "8Mi"))?;
    cluster.bound("anywhere")?;
    cluster.patch_claim("data", &json!({ "spec": { "resources": { "requests": { "storage": "16Mi" } } } }))?;
    cluster.access.wait_for(&cluster.claims(), "data", cluster.patience(), "to have grown", |claim| {
        let status = serde_json::to_value(&claim.status)?;
        ensure!(status["capacity"]["storage"] == "16Mi", "its status is {status}");
        Ok(())
    })?;
    let made: usize = cluster.agents.iter().map(|agent| agent.volumes().map(|found| found.len())).sum::<Result<_>>()?;
    ensure!(made == 2, "{made} volumes were made for two claims");
    Ok(())
}
