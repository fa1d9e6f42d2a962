//! Volumes that somebody has made for a claim on another node than the one that is selected for it. The control plane tries
//! to bind the claim to one, a policy refuses it, and neither says so.

use bulkhead_frontend::checks::Check;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::cluster::Volume;
use crate::lost::full_name;

/// Those among `volumes` for claims among `claims`, which wait for the nodes beside them.
pub fn find(claims: &[(String, PersistentVolumeClaim)], volumes: &[Volume]) -> Vec<Check> {
    let mut checks = Vec::new();
    for (node, claim) in claims {
        let is_decoy = |volume: &&Volume| {
            let uid = volume.claim.as_ref().map(|(_, _, uid)| uid.as_str());
            uid == claim.metadata.uid.as_deref() && volume.node != *node
        };
        checks.extend(volumes.iter().filter(is_decoy).map(|volume| {
            let message = format!(
                "{} may have a volume on node {node} only, and PersistentVolume {} on node {} holds it up: `kubectl delete pv {} --wait=false`, after which the agent there deletes its volume; if you have not made it and it comes again, somebody has the agent's token of that node",
                full_name(claim),
                volume.name,
                volume.node,
                volume.name
            );
            Check::failed("claims", message)
        }));
    }
    checks
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_volume_on_another_node_holds_a_claim_up() {
        let metadata = json!({ "name": "data", "namespace": "shop", "uid": "1" });
        let claim: PersistentVolumeClaim = from_value(json!({ "metadata": metadata })).unwrap();
        let claims = [("here".to_owned(), claim)];
        let volume = |node: &str, uid: &str| Volume {
            name: "pvc-1.there".to_owned(),
            node: node.to_owned(),
            claim: Some(("shop".to_owned(), "data".to_owned(), uid.to_owned())),
            ..Volume::default()
        };
        assert!(find(&claims, &[volume("here", "1"), volume("there", "2")]).is_empty());
        let told = &find(&claims, &[volume("there", "1")])[0].message;
        assert!(told.starts_with("shop/data") && told.contains("pvc-1.there on node there"), "{told}");
    }
}
