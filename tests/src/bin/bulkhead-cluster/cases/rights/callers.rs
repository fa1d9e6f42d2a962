//! What agents may ask about those who ask them which blocks have changed.

use anyhow::Result;
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::changed_blocks::{AGENTS, Service};
use bulkhead_tests::kubelet::DRIVER;
use serde_json::{Value, json};

use super::{Rights, with_rights};

cases! {
    on Cluster;
    an_agent_asks_about_callers_only_where_that_is_granted: Bare + Alone("grants the agents reviews"),
}

const SERVICES: &str = "/apis/cbt.storage.k8s.io/v1beta1/snapshotmetadataservices";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/bulkhead-system/endpointslices";

/// A review of a token, and one of what somebody may do.
fn reviews() -> [(&'static str, Value); 2] {
    let tokens = "/apis/authentication.k8s.io/v1/tokenreviews";
    let access = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let resource = json!({ "verb": "get", "resource": "volumesnapshots", "namespace": "default" });
    [
        (tokens, json!({ "spec": { "token": "x" } })),
        (access, json!({ "spec": { "user": "somebody", "resourceAttributes": resource } })),
    ]
}

fn an_agent_asks_about_callers_only_where_that_is_granted(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        refuses(rights)?;
        let service = Service::set_up(rights.cluster)?;
        let done = service.advertise(rights.cluster, AGENTS[0]).and_then(|()| grants(rights));
        service.remove(rights.cluster)?;
        done?;
        rights.cluster.access.wait(rights.cluster.patience(), "the right to be taken back", || refuses(rights))
    })
}

fn refuses(rights: &Rights<'_>) -> Result<()> {
    for (path, review) in reviews() {
        rights.agent.create(path, &review).refused_by_role()?;
    }
    rights.agent.get(&format!("{SERVICES}/{DRIVER}")).refused_by_role()?;
    rights.agent.get(SLICES).refused_by_role()
}

fn grants(rights: &Rights<'_>) -> Result<()> {
    rights.cluster.access.wait(rights.cluster.patience(), "the right to be known", || {
        for (path, review) in reviews() {
            rights.agent.create(path, &review).granted()?;
        }
        rights.agent.get(&format!("{SERVICES}/{DRIVER}")).granted()?;
        rights.agent.get(SLICES).granted().map(drop)
    })?;
    for path in [
        SERVICES,
        &format!("{SERVICES}/other.example.com"),
        &format!("{SLICES}/some"),
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        "/api/v1/namespaces/bulkhead-system/services",
        "/api/v1/namespaces/bulkhead-system/secrets/bulkhead-snapshot-metadata",
        "/apis/snapshot.storage.k8s.io/v1/volumesnapshots",
    ] {
        rights.agent.get(path).refused_by_role()?;
    }
    rights.agent.create(SERVICES, &json!({ "metadata": { "name": DRIVER } })).refused_by_role()?;
    rights.agent.delete(&format!("{SERVICES}/{DRIVER}")).refused_by_role()?;
    rights.agent.create(SLICES, &json!({ "metadata": { "name": "x" } })).refused_by_role()
}
