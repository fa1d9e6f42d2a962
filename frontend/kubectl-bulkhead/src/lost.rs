//! What refers to nodes that no longer exist, and what is on nodes though nothing refers to it.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_console::report::{Report, Table};
use bulkhead_model::exported::ExportedSnapshot;
use bulkhead_model::findings::OrphanedVolume;
use bulkhead_model::quantity::{Quantity, parse};
use bulkhead_model::volumes::group_of;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Failure, Volume};
use crate::snapshots::Snapshot;
use crate::{agents, moved, snapshots, volumes};

/// What nodes that no longer exist have left behind.
pub struct Lost {
    /// Volumes that were on them.
    pub volumes: Vec<Volume>,
    /// Claims that wait for them, each with its node.
    pub claims: Vec<(String, PersistentVolumeClaim)>,
    /// Snapshots that were on them.
    pub snapshots: Vec<Snapshot>,
    /// Groups of such snapshots.
    pub groups: Vec<Snapshot>,
}

impl Lost {
    /// Finds what nodes that no longer exist have left behind.
    pub async fn find(cluster: &Cluster) -> Result<Self, Failure> {
        let nodes = cluster.nodes().await?;
        let mut volumes = cluster.volumes().await?;
        volumes.retain(|volume| !volume.node.is_empty() && !nodes.contains(&volume.node));
        let mut claims = cluster.waiting(cluster.unbound_claims().await?);
        claims.retain(|(node, _)| !nodes.contains(node));
        let is_lost = |snapshot: &Snapshot| !snapshot.node.is_empty() && !nodes.contains(&snapshot.node);
        let mut snapshots = snapshots::all(cluster).await?.unwrap_or_default();
        snapshots.retain(is_lost);
        let mut groups = snapshots::groups(cluster).await?.unwrap_or_default();
        groups.retain(is_lost);
        Ok(Self { volumes, claims, snapshots, groups })
    }

    /// Only what belongs to `node`.
    pub fn of(mut self, node: &str) -> Self {
        self.volumes.retain(|volume| volume.node == node);
        self.claims.retain(|(waits_for, _)| waits_for == node);
        self.snapshots.retain(|snapshot| snapshot.node == node);
        self.groups.retain(|group| group.node == node);
        self
    }

    /// Returns whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.claims.is_empty() && self.snapshots.is_empty() && self.groups.is_empty()
    }

    /// As a table, with the state of each entry.
    pub fn table(&self) -> Table {
        let volume = |volume: &Volume| {
            let size = Quantity::from(volume.bytes).to_string();
            ["lost".to_owned(), volume.node.clone(), volume.claim_name(), size, volume.name.clone()]
        };
        let claim = |(node, claim): &(String, PersistentVolumeClaim)| {
            let size = Quantity::from(requested(claim)).to_string();
            ["waiting".to_owned(), node.clone(), full_name(claim), size, "-".to_owned()]
        };
        let row = |state: &str, snapshot: &Snapshot| {
            let (name, content) = (snapshot.full_name(), snapshot.content.clone());
            [state.to_owned(), snapshot.node.clone(), name, snapshot.size(), content]
        };
        let rows = self.volumes.iter().map(volume).chain(self.claims.iter().map(claim));
        let rows = rows.chain(self.snapshots.iter().map(|snapshot| row("snapshot", snapshot)));
        let rows = rows.chain(self.groups.iter().map(|group| row("group", group)));
        Table::headed(["state", "node", "claim", "size", "volume"], rows)
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let waiting: Vec<_> =
            self.claims.iter().map(|(node, claim)| json!({ "node": node, "claim": full_name(claim) })).collect();
        let json = |snapshots: &[Snapshot]| snapshots.iter().map(Snapshot::json).collect::<Vec<_>>();
        json!({ "volumes": volumes::json(&self.volumes), "waitingClaims": waiting,
                "snapshots": json(&self.snapshots), "groups": json(&self.groups) })
    }
}

/// `NAMESPACE/NAME`.
pub fn full_name(claim: &PersistentVolumeClaim) -> String {
    format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any())
}

fn requested(claim: &PersistentVolumeClaim) -> u64 {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.and_then(|requests| parse(&requests.get("storage")?.0)).unwrap_or_default()
}

/// `orphans`: what nodes that are gone have left behind, and on other nodes the volumes that no PersistentVolume names, and the
/// snapshots that no VolumeSnapshotContent names.
pub async fn orphans(cluster: &Cluster) -> Result<Report, Failure> {
    let lost = Lost::find(cluster).await?;
    let (mut rows, mut json, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let nodes = moved::asked(cluster).await?;
    let unnamed = unnamed_snapshots(cluster, nodes.clone()).await?;
    let findings = agents::findings(cluster, nodes).await;
    let search = moved::find(cluster, &findings).await?;
    notes.extend(search.moved.iter().map(|moved| moved.advice(&cluster.driver)));
    for (node, findings) in findings {
        match findings {
            Ok(findings) => {
                for OrphanedVolume { volume, pool, bytes } in &findings.orphans {
                    let size = Quantity::from(*bytes).to_string();
                    let state = if search.has(&node, volume) { "moved" } else { "orphan" };
                    rows.push([state.to_owned(), node.clone(), "-".to_owned(), size, volume.clone()]);
                    json.push(json!({ "node": node, "pool": pool, "volume": volume, "bytes": bytes }));
                }
                if findings.more > 0 {
                    notes.push(format!("{node} has more than can be listed: see `bulkheadctl volume orphans` there"));
                }
            }
            Err(why) => notes.push(format!("what is on {node} is unknown: {why}")),
        }
    }
    for (node, ExportedSnapshot { snapshot, bytes, .. }) in &unnamed.snapshots {
        let size = Quantity::from(*bytes).to_string();
        rows.push(["orphan-snapshot".to_owned(), node.clone(), "-".to_owned(), size, snapshot.clone()]);
    }
    notes.extend(unnamed.notes);
    let snapshots = unnamed.snapshots.iter().map(|(node, found)| {
        let ExportedSnapshot { snapshot, pool, bytes } = found;
        json!({ "node": node, "pool": pool, "snapshot": snapshot, "bytes": bytes })
    });
    let mut all = lost.json();
    all["orphanedSnapshots"] = snapshots.collect();
    all["orphanedVolumes"] = json.into();
    all["moved"] = search.json();
    Ok(Report::new(all, lost.table().and(rows).noting(notes)))
}

/// Snapshots on nodes that no VolumeSnapshotContent names, each with its node; and what is unknown.
#[derive(Default)]
struct Unnamed {
    snapshots: Vec<(String, ExportedSnapshot)>,
    notes: Vec<String>,
}

/// Those on `nodes`. The nodes are asked first: an object is there before its snapshot, and goes after it.
async fn unnamed_snapshots(cluster: &Cluster, nodes: BTreeSet<String>) -> Result<Unnamed, Failure> {
    let of_nodes = agents::snapshots(cluster, nodes).await;
    let handles = |all: Vec<Snapshot>| all.into_iter().map(|snapshot| snapshot.handle).collect();
    let named = snapshots::all(cluster).await?.map(handles);
    let groups = snapshots::groups(cluster).await?.map(handles).unwrap_or_default();
    Ok(unnamed(of_nodes, named.as_ref(), &groups))
}

fn unnamed(
    of_nodes: BTreeMap<String, Result<Vec<ExportedSnapshot>, String>>,
    named: Option<&BTreeSet<String>>,
    groups: &BTreeSet<String>,
) -> Unnamed {
    let mut unnamed = Unnamed::default();
    for (node, found) in of_nodes {
        match found {
            Ok(found) => {
                let is_of_group = |id: &str| {
                    let group = id.parse().ok().and_then(|id| group_of(&id));
                    group.is_some_and(|group| groups.contains(group.as_str()))
                };
                let is_unnamed = |snapshot: &ExportedSnapshot| {
                    named.is_none_or(|named| !named.contains(&snapshot.snapshot)) && !is_of_group(&snapshot.snapshot)
                };
                let found = found.into_iter().filter(is_unnamed).map(|snapshot| (node.clone(), snapshot));
                unnamed.snapshots.extend(found);
            }
            Err(why) => unnamed.notes.push(format!("which snapshots are on {node} is unknown: {why}")),
        }
    }
    if named.is_none() && !unnamed.snapshots.is_empty() {
        unnamed.snapshots.clear();
        let note = "there are snapshots on nodes; which of them VolumeSnapshotContents name is unknown: the cluster does not know the kind, or you may not list it";
        unnamed.notes.push(note.to_owned());
    }
    unnamed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_that_no_object_names_are_told_and_no_others() {
        let snapshot = |id: &str| ExportedSnapshot { snapshot: id.to_owned(), ..ExportedSnapshot::default() };
        let of_nodes = || {
            let of_group = snapshot("groupsnapshot-1.of-0123456789abcdef");
            let known = Ok(vec![snapshot("snapshot-1"), snapshot("by-hand"), of_group]);
            BTreeMap::from([("a".to_owned(), known), ("b".to_owned(), Err("no agent".to_owned()))])
        };
        let named = BTreeSet::from(["snapshot-1".to_owned()]);
        let groups = BTreeSet::from(["groupsnapshot-1".to_owned()]);
        let found = unnamed(of_nodes(), Some(&named), &groups);
        assert_eq!(found.snapshots, [("a".to_owned(), snapshot("by-hand"))]);
        assert_eq!(found.notes, ["which snapshots are on b is unknown: no agent"]);
        // What may be named is not called an orphan.
        let found = unnamed(of_nodes(), None, &groups);
        assert!(found.snapshots.is_empty() && found.notes[1].contains("is unknown"), "{:?}", found.notes);
    }
}
