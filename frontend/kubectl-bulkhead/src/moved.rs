//! Volumes and snapshots that the cluster knows on one node, and that another node has: a node was renamed, or its disk is
//! in another. Whoever gave up their objects, or deleted what no object names, would lose the data.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_model::exported::ExportedSnapshot;
use bulkhead_model::findings::Findings;
use bulkhead_model::objects::names::MANAGED_BY_NODE;
use bulkhead_model::quantity::count;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Failure, Volume};
use crate::snapshots::Snapshot;
use crate::{agents, nodes, snapshots};

/// What the agents of nodes answer; where one cannot be asked, why.
pub type Answers<T> = BTreeMap<String, Result<T, String>>;

/// What one node has of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// The node that the objects name.
    pub from: String,
    /// The node that has it.
    pub to: String,
    /// The ids of the volumes.
    pub volumes: BTreeSet<String>,
    /// The VolumeSnapshotContents of the snapshots.
    pub contents: BTreeSet<String>,
}

/// What has moved, and of which nodes it is not known what they have.
#[derive(Debug, Default)]
pub struct Search {
    pub moved: Vec<Moved>,
    pub unknown: Vec<String>,
}

/// What the objects of the cluster say.
struct Known<'a> {
    nodes: &'a BTreeSet<String>,
    volumes: &'a [Volume],
    snapshots: &'a [Snapshot],
}

/// The nodes whose agents are asked.
pub async fn asked(cluster: &Cluster) -> Result<BTreeSet<String>, Failure> {
    let members = nodes::members(cluster).await?.into_iter();
    Ok(members.filter(|(_, member)| member.exists).map(|(node, _)| node).collect())
}

/// Compares what the cluster knows with what its nodes have.
pub async fn find(cluster: &Cluster, findings: &Answers<Findings>) -> Result<Search, Failure> {
    let (nodes, volumes) = (cluster.nodes().await?, cluster.volumes().await?);
    let snapshots = snapshots::all(cluster).await?.unwrap_or_default();
    let known = Known { nodes: &nodes, volumes: &volumes, snapshots: &snapshots };
    let of_nodes = match snapshots.iter().any(|snapshot| known.is_lost(&snapshot.node)) {
        true => agents::snapshots(cluster, findings.keys().cloned().collect()).await,
        false => BTreeMap::new(),
    };
    Ok(known.compare(findings, &of_nodes))
}

impl Known<'_> {
    fn is_lost(&self, node: &str) -> bool {
        !node.is_empty() && !self.nodes.contains(node)
    }

    fn compare(&self, findings: &Answers<Findings>, of_nodes: &Answers<Vec<ExportedSnapshot>>) -> Search {
        let mut moved = BTreeMap::<(&str, &str), Moved>::new();
        let mut unknown = BTreeSet::new();
        let is_missing = |volume: &Volume| {
            let found = findings.get(&volume.node).and_then(|findings| findings.as_ref().ok());
            found.is_some_and(|found| found.abnormal.iter().any(|one| one.missing && one.volume == volume.handle))
        };
        let lost = |volume: &&Volume| self.is_lost(&volume.node) || is_missing(volume);
        let lost: Vec<_> = self.volumes.iter().filter(lost).collect();
        for (to, found) in findings {
            let Ok(found) = found else {
                unknown.insert(to.clone());
                continue;
            };
            if found.more > 0 {
                unknown.insert(to.clone());
            }
            let orphans: BTreeSet<_> = found.orphans.iter().map(|orphan| orphan.volume.as_str()).collect();
            for volume in lost.iter().filter(|volume| volume.node != *to && orphans.contains(volume.handle.as_str())) {
                moved.entry((&volume.node, to)).or_default().volumes.insert(volume.handle.clone());
            }
        }
        for (to, found) in of_nodes {
            let Ok(found) = found else {
                unknown.insert(to.clone());
                continue;
            };
            let named =
                |of: &Snapshot| self.snapshots.iter().any(|other| other.node == *to && other.handle == of.handle);
            let has = |lost: &&Snapshot| found.iter().any(|one| one.snapshot == lost.handle) && !named(lost);
            for snapshot in self.snapshots.iter().filter(|snapshot| self.is_lost(&snapshot.node)).filter(has) {
                moved.entry((&snapshot.node, to)).or_default().contents.insert(snapshot.content.clone());
            }
        }
        let named = |((from, to), moved): ((&str, &str), Moved)| Moved { from: from.into(), to: to.into(), ..moved };
        Search { moved: moved.into_iter().map(named).collect(), unknown: unknown.into_iter().collect() }
    }
}

impl Search {
    /// What has moved away from `node`.
    pub fn from(&self, node: &str) -> impl Iterator<Item = &Moved> {
        self.moved.iter().filter(move |moved| moved.from == node)
    }

    /// Returns whether this volume, which no object names on `node`, is another node's by its object.
    pub fn has(&self, node: &str, volume: &str) -> bool {
        self.moved.iter().any(|moved| moved.to == node && moved.volumes.contains(volume))
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let json = |moved: &Moved| json!({ "from": moved.from, "to": moved.to, "volumes": moved.volumes, "contents": moved.contents });
        self.moved.iter().map(json).collect()
    }
}

impl Moved {
    /// Returns what is where, and how it comes back.
    pub fn advice(&self, driver: &str) -> String {
        let Self { from, to, volumes, contents } = self;
        let of_volumes = (!volumes.is_empty()).then(|| {
            let some = count(volumes.len() as u64, "volume");
            format!(
                "{some} of node {from}, found on node {to}: `kubectl bulkhead adopt --node {to} --replace-from {from}`"
            )
        });
        let of_snapshots = (!contents.is_empty()).then(|| {
            let some = count(contents.len() as u64, "snapshot");
            let names = contents.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
            format!(
                "{some} of node {from}, found on node {to}: `kubectl label volumesnapshotcontent {names} --overwrite {MANAGED_BY_NODE}={to} {driver}/node={to}`"
            )
        });
        of_volumes.into_iter().chain(of_snapshots).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_model::findings::{AbnormalVolume, OrphanedVolume};

    use super::*;

    fn volume(handle: &str, node: &str) -> Volume {
        Volume { handle: handle.to_owned(), node: node.to_owned(), ..Volume::default() }
    }

    fn has(orphans: &[&str], missing: &[&str]) -> Result<Findings, String> {
        let orphan = |volume: &&str| OrphanedVolume { volume: (*volume).to_owned(), ..OrphanedVolume::default() };
        let lacks =
            |volume: &&str| AbnormalVolume { volume: (*volume).to_owned(), missing: true, ..AbnormalVolume::default() };
        let (orphans, abnormal) = (orphans.iter().map(orphan).collect(), missing.iter().map(lacks).collect());
        Ok(Findings { orphans, abnormal, more: 0 })
    }

    fn search(volumes: &[Volume], findings: &[(&str, Result<Findings, String>)]) -> Search {
        let nodes = findings.iter().map(|(node, _)| (*node).to_owned()).collect();
        let findings = findings.iter().map(|(node, found)| ((*node).to_owned(), found.clone())).collect();
        Known { nodes: &nodes, volumes, snapshots: &[] }.compare(&findings, &BTreeMap::new())
    }

    #[test]
    fn what_a_lost_node_had_is_found_on_another() {
        let volumes = [volume("pvc-1", "c"), volume("pvc-2", "c"), volume("pvc-3", "d")];
        let found = search(&volumes, &[("d", has(&["pvc-1", "by-hand"], &[])), ("e", Err("no agent".to_owned()))]);
        let [moved] = &found.moved[..] else { panic!("{found:?}") };
        assert_eq!((moved.from.as_str(), moved.to.as_str(), moved.volumes.len()), ("c", "d", 1));
        assert!(found.has("d", "pvc-1") && !found.has("d", "by-hand") && !found.has("e", "pvc-1"));
        assert_eq!((found.from("c").count(), found.from("d").count(), found.unknown), (1, 0, vec!["e".to_owned()]));
        let told = moved.advice("bulkhead.csi.local");
        assert_eq!(told, "1 volume of node c, found on node d: `kubectl bulkhead adopt --node d --replace-from c`");
    }

    #[test]
    fn a_disk_that_was_moved_between_nodes_that_exist_is_found() {
        let volumes = [volume("pvc-1", "c"), volume("pvc-2", "c")];
        let found = search(&volumes, &[("c", has(&[], &["pvc-1"])), ("d", has(&["pvc-1", "pvc-2"], &[]))]);
        assert_eq!(found.moved.len(), 1);
        assert!(found.has("d", "pvc-1") && !found.has("d", "pvc-2"), "its own node has it");
    }
}
