//! `snapshots`: the snapshots of all nodes, by their objects; and the groups that were taken together.

use std::collections::BTreeMap;
use std::fmt::Debug;

use bulkhead_console::report::{Report, Table};
use bulkhead_model::check::Check;
use bulkhead_model::objects::content::Content;
use bulkhead_model::objects::group_content::VolumeGroupSnapshotContent;
use bulkhead_model::objects::names::SNAPSHOT_GROUP;
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::quantity::Quantity;
use bulkhead_model::volumes::Place;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Failure};

/// How long a snapshot may be nobody's. The agent that has its volume takes it within seconds.
const UNOWNED: SignedDuration = SignedDuration::from_secs(60);

/// A snapshot, by its VolumeSnapshotContent; or a group, by its VolumeGroupSnapshotContent.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The kind of the object that its owner has made: VolumeSnapshot or VolumeGroupSnapshot.
    pub kind: &'static str,
    /// The API group of that, and of the content.
    pub api_group: String,
    /// The object's name.
    pub content: String,
    /// Its uid.
    pub uid: String,
    /// The node that handles it; empty if none does yet.
    pub node: String,
    /// Namespace and name of the owner's object.
    pub of: (String, String),
    /// What it is called on its node; empty if that is not known.
    pub handle: String,
    /// Whether volumes can be made from it.
    pub is_ready: bool,
    bytes: Option<u64>,
    state: &'static str,
    policy: String,
    is_old: bool,
}

impl Snapshot {
    fn read<K: Content>(content: &K, bytes: Option<i64>, place: &Place) -> Self {
        let state = match content {
            _ if content.is_being_deleted() => "Terminating",
            _ if content.is_ready() => "Ready",
            _ if content.error().is_some() => "Failed",
            _ => "Pending",
        };
        let of = content.owner();
        let made = content.meta().creation_timestamp.as_ref();
        Self {
            kind: K::OWNER,
            api_group: K::group(&()).into_owned(),
            content: content.name_any(),
            uid: content.object_uid().to_owned(),
            node: content.node(place).unwrap_or_default().to_owned(),
            of: (of.namespace.clone(), of.name.clone()),
            handle: content.handle().unwrap_or_default(),
            is_ready: content.is_ready(),
            bytes: bytes.and_then(|bytes| u64::try_from(bytes).ok()),
            state,
            policy: content.deletion_policy().to_owned(),
            is_old: made.is_some_and(|made| Timestamp::now().duration_since(made.0) > UNOWNED),
        }
    }

    /// `NAMESPACE/NAME` of its owner's object.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.of.0, self.of.1)
    }

    /// Returns how large a volume that is made from it is at least.
    pub fn size(&self) -> String {
        self.bytes.map_or_else(|| "-".to_owned(), |bytes| Quantity::from(bytes).to_string())
    }

    fn row(&self) -> [String; 6] {
        let node = if self.node.is_empty() { "-" } else { &self.node };
        [
            self.handle.clone(),
            node.to_owned(),
            self.full_name(),
            self.size(),
            self.state.to_owned(),
            self.policy.clone(),
        ]
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        json!({
            "snapshot": self.handle, "node": self.node, "volumeSnapshot": self.full_name(), "bytes": self.bytes,
            "state": self.state, "deletionPolicy": self.policy, "content": self.content,
        })
    }
}

/// The driver's snapshots, by node and VolumeSnapshot. `None` if the cluster does not know the kind, or the user may not
/// list them.
pub async fn all(cluster: &Cluster) -> Result<Option<Vec<Snapshot>>, Failure> {
    let size = |content: &VolumeSnapshotContent| content.status.as_ref()?.restore_size;
    read_all(cluster, "listing VolumeSnapshotContents", size).await
}

/// The driver's groups of snapshots, in the same way.
pub async fn groups(cluster: &Cluster) -> Result<Option<Vec<Snapshot>>, Failure> {
    read_all(cluster, "listing VolumeGroupSnapshotContents", |_: &VolumeGroupSnapshotContent| None).await
}

async fn read_all<K>(
    cluster: &Cluster,
    operation: &str,
    size: impl Fn(&K) -> Option<i64>,
) -> Result<Option<Vec<Snapshot>>, Failure>
where
    K: Content + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let contents: Api<K> = Api::all(cluster.client.clone());
    let place = cluster.place("")?;
    let own =
        |content: K| (content.driver() == cluster.driver).then(|| Snapshot::read(&content, size(&content), &place));
    let list = cluster.list(operation, contents, ListParams::default(), own).await;
    let mut all = match list {
        Err(failure) if failure.is_forbidden() || failure.is_unknown() => return Ok(None),
        list => list?,
    };
    all.sort_by(|one, other| (&one.node, &one.of).cmp(&(&other.node, &other.of)));
    Ok(Some(all))
}

/// `snapshots`.
pub async fn list(cluster: &Cluster) -> Result<Report, Failure> {
    let found = all(cluster).await?;
    let note = found.is_none().then(|| {
        format!("the cluster does not know the kinds of {SNAPSHOT_GROUP}, or you may not list them; those that `bulkheadctl snapshot list` shows on a node are there all the same")
    });
    let all = found.unwrap_or_default();
    let table =
        Table::headed(["snapshot", "node", "volumesnapshot", "size", "state", "policy"], all.iter().map(Snapshot::row));
    Ok(Report::new(all.iter().map(Snapshot::json).collect(), table.noting(note)))
}

/// Snapshots that no node has: their volume is on none, or its agent is away.
pub fn unowned(all: &[Snapshot]) -> Vec<Check> {
    let unowned = all.iter().filter(|snapshot| snapshot.node.is_empty() && snapshot.is_old);
    let check = |snapshot: &Snapshot| {
        let message = format!(
            "no node has the volume or the snapshot of {} ({kind}Content {}): does the agent of its node run? If the node is gone for good, delete the {kind}",
            snapshot.full_name(),
            snapshot.content,
            kind = snapshot.kind
        );
        Check::failed("snapshots", message)
    };
    unowned.map(check).collect()
}

/// Returns how many snapshots each node has that no longer exists, unless something of it has been found elsewhere.
pub fn on_lost_nodes(all: &[Snapshot], exists: impl Fn(&str) -> bool, has_moved: impl Fn(&str) -> bool) -> Vec<Check> {
    let mut lost = BTreeMap::<&str, u64>::new();
    for snapshot in all.iter().filter(|snapshot| !snapshot.node.is_empty() && !exists(&snapshot.node)) {
        *lost.entry(&snapshot.node).or_default() += 1;
    }
    let check = |(node, number): (&str, u64)| {
        let number = bulkhead_model::quantity::count(number, "snapshot");
        let advice = match has_moved(node) {
            true => "see above what of it was found elsewhere".to_owned(),
            false => format!("if it is gone for good: `kubectl bulkhead release-node {node}`"),
        };
        let message = format!("{number} on node {node}, which does not exist: {advice}");
        Check::failed("snapshots", message)
    };
    lost.into_iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::from_value;

    use super::*;

    fn snapshot(changes: Value) -> Snapshot {
        let mut content = json!({
            "metadata": { "name": "snapcontent-1", "creationTimestamp": "2026-01-01T00:00:00Z",
                          "labels": { "bulkhead.csi.local/node": "here" } },
            "spec": { "driver": "bulkhead.csi.local", "deletionPolicy": "Delete", "source": { "volumeHandle": "pvc-1" },
                      "volumeSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "1" } },
            "status": { "readyToUse": true, "snapshotHandle": "snapshot-1", "restoreSize": 1 << 30 },
        });
        for (key, value) in changes.as_object().unwrap() {
            content[key] = value.clone();
        }
        let place = Place::new(&"bulkhead.csi.local".parse().unwrap(), "");
        let content: VolumeSnapshotContent = from_value(content).unwrap();
        Snapshot::read(&content, content.status.as_ref().and_then(|status| status.restore_size), &place)
    }

    #[test]
    fn a_snapshot_in_one_row() {
        assert_eq!(snapshot(json!({})).row(), ["snapshot-1", "here", "shop/monday", "1 GiB", "Ready", "Delete"]);
        let failed = snapshot(json!({ "status": { "error": { "message": "no" } } }));
        assert_eq!(failed.row()[3..5], ["-", "Failed"]);
    }

    #[test]
    fn what_nobody_has_and_what_is_lost_is_told() {
        let nobodys = snapshot(json!({ "metadata": { "name": "c", "creationTimestamp": "2026-01-01T00:00:00Z" } }));
        let all = [snapshot(json!({})), nobodys];
        assert_eq!(unowned(&all).len(), 1);
        assert!(on_lost_nodes(&all, |_| true, |_| false).is_empty());
        let told = |has_moved| on_lost_nodes(&all, |node| node != "here", |_| has_moved)[0].message.clone();
        let (lost, moved) = (told(false), told(true));
        assert!(lost.starts_with("1 snapshot on node here") && lost.contains("release-node here"), "{lost}");
        assert!(!moved.contains("release-node"), "{moved}");
    }
}
