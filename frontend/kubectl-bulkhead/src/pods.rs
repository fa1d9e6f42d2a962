//! Which pods have which claims.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Volume};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::cluster::{Cluster, Failure};

/// The pods that have each claim, by its namespace and name.
pub type Pods = BTreeMap<(String, String), Vec<String>>;

/// The pods that have not ended, in one namespace only if one is given. `None` if the user may not list them.
pub async fn by_claim(cluster: &Cluster, namespace: Option<&str>) -> Result<Option<Pods>, Failure> {
    let pods: Api<Pod> = match namespace {
        Some(namespace) => Api::namespaced(cluster.client.clone(), namespace),
        None => Api::all(cluster.client.clone()),
    };
    // What has ended uses nothing.
    let running = ListParams::default().fields("status.phase!=Succeeded,status.phase!=Failed");
    let mut by_claim = Pods::new();
    let note = |pod: Pod| {
        let namespace = pod.namespace().unwrap_or_default();
        for claim in claims(&pod) {
            by_claim.entry((namespace.clone(), claim)).or_default().push(pod.name_any());
        }
        None::<()>
    };
    match cluster.list("listing pods", pods, running, note).await {
        Err(failure) if failure.is_forbidden() => Ok(None),
        list => list.map(|_| Some(by_claim)),
    }
}

/// The names of the claims in a pod's volumes. The claim of a generic ephemeral volume is called after both.
fn claims(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let name = |volume: &Volume| {
        let ephemeral = volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name_any(), volume.name));
        volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone()).or(ephemeral)
    };
    volumes.filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_has_the_claims_of_its_volumes() {
        let pod = json!({ "metadata": { "name": "shop-0" }, "spec": { "containers": [], "volumes": [
            { "name": "data", "persistentVolumeClaim": { "claimName": "data-shop-0" } },
            { "name": "scratch", "ephemeral": {} },
            { "name": "token", "projected": { "sources": [] } },
        ] } });
        assert_eq!(claims(&serde_json::from_value(pod).unwrap()), ["data-shop-0", "shop-0-scratch"]);
    }
}
