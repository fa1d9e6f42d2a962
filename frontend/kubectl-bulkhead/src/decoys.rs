//! Volumes that somebody has made for a claim of another driver, or on a node that is not selected for it. The control plane
//! tries to bind the claim to such a volume, and to nothing else, a policy refuses it, and neither says so.

use bulkhead_model::check::Check;
use bulkhead_model::objects::names::{PROVISIONER, PROVISIONER_BETA, SELECTED_NODE, shown};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use crate::cluster::Volume;
use crate::lost::full_name;

/// Those among `volumes` for claims among `unbound`. A claim may wait for no node yet: its own volume could come later
/// only, and it is held up all the same.
pub fn find(driver: &str, unbound: &[PersistentVolumeClaim], volumes: &[Volume]) -> Vec<Check> {
    let mut checks = Vec::new();
    for claim in unbound {
        let Some(claim_uid) = claim.metadata.uid.as_deref() else { continue };
        let annotation = |name: &str| claim.annotations().get(name).filter(|value| !value.is_empty());
        let node = annotation(SELECTED_NODE);
        let provisioner = annotation(PROVISIONER).or_else(|| annotation(PROVISIONER_BETA));
        let is_ours = provisioner.is_none_or(|provisioner| provisioner == driver);
        let is_decoy = |volume: &&Volume| {
            // One of another form of name, made by hand, may be bound on any node.
            let is_named_so = volume.name.strip_prefix("pvc-").and_then(|name| name.strip_prefix(claim_uid));
            let is_for_it = volume.claim.as_ref().is_some_and(|(_, _, uid)| uid == claim_uid);
            is_for_it
                && is_named_so.is_some_and(|rest| rest.starts_with('.'))
                && !(is_ours && Some(&volume.node) == node)
        };
        let may = match node {
            _ if !is_ours => "is for another driver".to_owned(),
            Some(node) => format!("may have a volume on node {} only", shown(node)),
            None => "has no node yet".to_owned(),
        };
        checks.extend(volumes.iter().filter(is_decoy).map(|volume| {
            let name = &volume.name;
            // The control plane takes it for bound, and so do those who hold it with a finalizer.
            let message = format!(
                "{} {may}, and PersistentVolume {name} on node {} holds it up: `kubectl delete pv {name} --wait=false`, after which the agent there removes its finalizer, or, if there is none, `kubectl patch pv {name} --type merge --patch '{{\"metadata\":{{\"finalizers\":null}}}}'`; if you have not made it and it comes again, somebody has the agent's token of that node",
                full_name(claim),
                volume.node
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

    const OWN: &str = "bulkhead.csi.local";

    fn claim(node: Option<&str>, provisioner: &str) -> PersistentVolumeClaim {
        let annotations = json!({ SELECTED_NODE: node.unwrap_or_default(), PROVISIONER: provisioner });
        let metadata = json!({ "name": "data", "namespace": "shop", "uid": "1", "annotations": annotations });
        from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn volume(node: &str, uid: &str) -> Volume {
        Volume {
            name: format!("pvc-{uid}.{node}"),
            node: node.to_owned(),
            claim: Some(("shop".to_owned(), "data".to_owned(), uid.to_owned())),
            ..Volume::default()
        }
    }

    #[test]
    fn a_volume_on_another_node_holds_a_claim_up() {
        let claims = [claim(Some("here"), OWN)];
        assert!(find(OWN, &claims, &[volume("here", "1"), volume("there", "2")]).is_empty());
        let told = &find(OWN, &claims, &[volume("there", "1")])[0].message;
        assert!(told.starts_with("shop/data may") && told.contains("pvc-1.there on node there"), "{told}");
        let foreign = [claim(Some("here"), "other.example.com")];
        let told = &find(OWN, &foreign, &[volume("here", "1")])[0].message;
        assert!(told.starts_with("shop/data is for another driver, and PersistentVolume pvc-1.here"), "{told}");
    }

    #[test]
    fn any_volume_holds_a_claim_up_that_has_no_node() {
        let claims = [claim(None, "")];
        let told = &find(OWN, &claims, &[volume("there", "1")])[0].message;
        assert!(told.starts_with("shop/data has no node yet, and PersistentVolume pvc-1.there"), "{told}");
        let by_hand = Volume { name: "by-hand".to_owned(), ..volume("there", "1") };
        assert!(find(OWN, &claims, &[by_hand]).is_empty(), "it is bound");
    }
}
