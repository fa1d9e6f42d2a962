//! Claims that are to begin as copies of what no node has. No node was selected for them, and none takes them.

use std::collections::BTreeSet;

use bulkhead_model::check::Check;
use bulkhead_model::objects::names;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::cluster::Volume;
use crate::lost::full_name;
use crate::snapshots::Snapshot;

/// How long a claim may wait for the node of its source. Its agent takes it within seconds.
const WAITING: SignedDuration = SignedDuration::from_secs(60);

/// What there is to begin as a copy of.
pub struct Sources<'a> {
    /// The volumes.
    pub volumes: &'a [Volume],
    /// The snapshots; `None` if they are not known.
    pub snapshots: Option<&'a [Snapshot]>,
    /// The nodes that exist.
    pub nodes: BTreeSet<&'a str>,
}

/// Those among `unbound` claims of `driver` that have waited for longer than a minute, each with what the matter is.
pub fn find(driver: &str, unbound: &[PersistentVolumeClaim], sources: &Sources<'_>) -> Vec<Check> {
    let now = Timestamp::now();
    let is_late = |claim: &&PersistentVolumeClaim| {
        let made = claim.metadata.creation_timestamp.as_ref();
        made.is_some_and(|made| now.duration_since(made.0) > WAITING)
    };
    let is_unplaced = |claim: &&PersistentVolumeClaim| {
        let annotation = |name: &str| claim.annotations().get(name).map(String::as_str);
        let provisioner = annotation(names::PROVISIONER).or_else(|| annotation(names::PROVISIONER_BETA));
        provisioner == Some(driver) && annotation(names::SELECTED_NODE).is_none()
    };
    let late = unbound.iter().filter(is_late).filter(is_unplaced);
    late.filter_map(|claim| Some(check(claim, &sources.matter(claim)?))).collect()
}

fn check(claim: &PersistentVolumeClaim, matter: &str) -> Check {
    Check::failed("claims", format!("claim {} is taken by no node: {matter}", full_name(claim)))
}

impl Sources<'_> {
    /// Returns why no node has the source of `claim`; `None` if it has none.
    fn matter(&self, claim: &PersistentVolumeClaim) -> Option<String> {
        let source = claim.spec.as_ref()?.data_source_ref.as_ref()?;
        let (namespace, name) = (claim.namespace().unwrap_or_default(), source.name.as_str());
        let called = names::shown(name);
        let (source, node) = match source.kind.as_str() {
            "VolumeSnapshot" => {
                let shown = format!("VolumeSnapshot {called}");
                let Some(snapshots) = self.snapshots else {
                    return Some(format!("{shown} is not known here: you may not list VolumeSnapshotContents"));
                };
                let found = snapshots.iter().find(|snapshot| snapshot.of == (namespace.clone(), name.to_owned()));
                match found {
                    Some(found) if found.is_ready => (shown, found.node.as_str()),
                    Some(_) => return Some(format!("{shown} is not ready: see its status.error")),
                    None => (shown, ""),
                }
            }
            "PersistentVolumeClaim" => {
                let is_of_it = |volume: &&Volume| {
                    volume.claim.as_ref().is_some_and(|(of, claim, _)| (of, claim.as_str()) == (&namespace, name))
                };
                let found = self.volumes.iter().find(is_of_it);
                (format!("claim {called}"), found.map_or("", |found| &found.node))
            }
            _ => return None,
        };
        Some(match node {
            "" => format!(
                "{source}, which it is to begin as a copy of, does not exist, or no node has it; correct the claim, or delete it"
            ),
            node if self.nodes.contains(node) => format!("{source} is on node {node}: does its agent run there?"),
            node => format!(
                "{source} is on node {node}, which does not exist; if that is gone for good, so is the source: delete the claim"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn claim(kind: &str, name: &str, annotations: Value) -> PersistentVolumeClaim {
        from_value(json!({
            "metadata": { "namespace": "shop", "name": "copy", "creationTimestamp": "2026-01-01T00:00:00Z",
                          "annotations": annotations },
            "spec": { "dataSourceRef": { "kind": kind, "name": name } },
        }))
        .unwrap()
    }

    fn told(claim: PersistentVolumeClaim) -> Vec<String> {
        let volume = |name: &str, node: &str| Volume {
            node: node.to_owned(),
            claim: Some(("shop".to_owned(), name.to_owned(), "1".to_owned())),
            ..Volume::default()
        };
        let volumes = [volume("here", "a"), volume("lost", "b")];
        let sources = Sources { volumes: &volumes, snapshots: Some(&[]), nodes: BTreeSet::from(["a"]) };
        find("bulkhead.csi.local", &[claim], &sources).into_iter().map(|check| check.message).collect()
    }

    #[test]
    fn a_claim_whose_source_no_node_has_is_told_with_what_the_matter_is() {
        let ours = json!({ "volume.kubernetes.io/storage-provisioner": "bulkhead.csi.local" });
        let of = |kind: &str, name: &str| told(claim(kind, name, ours.clone())).concat();
        assert!(of("PersistentVolumeClaim", "lost").contains("on node b, which does not exist"));
        assert!(of("PersistentVolumeClaim", "here").contains("on node a: does its agent run"));
        assert!(of("PersistentVolumeClaim", "none").starts_with("claim shop/copy is taken by no node: claim none"));
        assert!(
            of("VolumeSnapshot", "none").contains("VolumeSnapshot none, which it is to begin as a copy of, does not")
        );
    }

    #[test]
    fn what_a_tenant_has_written_is_no_sentence_of_ours() {
        let ours = json!({ "volume.kubernetes.io/storage-provisioner": "bulkhead.csi.local" });
        let sentence = "x is fine; run `kubectl delete pv --all`; ".repeat(20);
        let told = told(claim("VolumeSnapshot", &sentence, ours)).concat();
        assert!(told.contains("VolumeSnapshot \"x is fine; run") && told.len() < 300, "{told}");
        assert!(told.ends_with("correct the claim, or delete it"), "{told}");
    }

    #[test]
    fn others_are_left_alone() {
        let mut theirs = json!({ "volume.kubernetes.io/storage-provisioner": "other.example.com" });
        assert!(told(claim("VolumeSnapshot", "none", theirs.clone())).is_empty());
        theirs["volume.kubernetes.io/storage-provisioner"] = "bulkhead.csi.local".into();
        assert!(told(claim("Populated", "none", theirs.clone())).is_empty());
        theirs["volume.kubernetes.io/selected-node"] = "a".into();
        assert!(told(claim("VolumeSnapshot", "none", theirs)).is_empty(), "its node reports it");
    }
}
