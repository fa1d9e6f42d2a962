//! What refers to nodes that no longer exist, and what is on nodes though nothing refers to it.

use bulkhead_console::report::{Report, Table};
use bulkhead_model::findings::OrphanedVolume;
use bulkhead_model::quantity::{Quantity, parse};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Failure, Volume};
use crate::snapshots::Snapshot;
use crate::{agents, nodes, snapshots, volumes};

/// What nodes that no longer exist have left behind.
pub struct Lost {
    /// Volumes that were on them.
    pub volumes: Vec<Volume>,
    /// Claims that wait for them, each with its node.
    pub claims: Vec<(String, PersistentVolumeClaim)>,
    /// Snapshots that were on them.
    pub snapshots: Vec<Snapshot>,
}

impl Lost {
    /// Finds what nodes that no longer exist have left behind.
    pub async fn find(cluster: &Cluster) -> Result<Self, Failure> {
        let nodes = cluster.nodes().await?;
        let mut volumes = cluster.volumes().await?;
        volumes.retain(|volume| !volume.node.is_empty() && !nodes.contains(&volume.node));
        let mut claims = cluster.waiting(cluster.unbound_claims().await?);
        claims.retain(|(node, _)| !nodes.contains(node));
        let mut snapshots = snapshots::all(cluster).await?.unwrap_or_default();
        snapshots.retain(|snapshot| !snapshot.node.is_empty() && !nodes.contains(&snapshot.node));
        Ok(Self { volumes, claims, snapshots })
    }

    /// Only what belongs to `node`.
    pub fn of(mut self, node: &str) -> Self {
        self.volumes.retain(|volume| volume.node == node);
        self.claims.retain(|(waits_for, _)| waits_for == node);
        self.snapshots.retain(|snapshot| snapshot.node == node);
        self
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.claims.is_empty() && self.snapshots.is_empty()
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
        let snapshot = |snapshot: &Snapshot| {
            let (name, content) = (snapshot.full_name(), snapshot.content.clone());
            ["snapshot".to_owned(), snapshot.node.clone(), name, snapshot.size(), content]
        };
        let rows = self.volumes.iter().map(volume).chain(self.claims.iter().map(claim));
        let rows = rows.chain(self.snapshots.iter().map(snapshot));
        Table::headed(["state", "node", "claim", "size", "volume"], rows)
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let waiting: Vec<_> =
            self.claims.iter().map(|(node, claim)| json!({ "node": node, "claim": full_name(claim) })).collect();
        let snapshots: Vec<_> = self.snapshots.iter().map(Snapshot::json).collect();
        json!({ "volumes": volumes::json(&self.volumes), "waitingClaims": waiting, "snapshots": snapshots })
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

/// `orphans`: what nodes that are gone have left behind, and the volumes on other nodes that no PersistentVolume names.
pub async fn orphans(cluster: &Cluster) -> Result<Report, Failure> {
    let lost = Lost::find(cluster).await?;
    let (mut rows, mut json, mut notes) = (Vec::new(), Vec::new(), Vec::new());
    let nodes = nodes::members(cluster).await?.into_iter().filter(|(_, member)| member.exists).map(|(node, _)| node);
    for (node, findings) in agents::findings(cluster, nodes.collect()).await {
        match findings {
            Ok(findings) => {
                for OrphanedVolume { volume, pool, bytes } in &findings.orphans {
                    let size = Quantity::from(*bytes).to_string();
                    rows.push(["orphan".to_owned(), node.clone(), "-".to_owned(), size, volume.clone()]);
                    json.push(json!({ "node": node, "pool": pool, "volume": volume, "bytes": bytes }));
                }
                if findings.more > 0 {
                    notes.push(format!("{node} has more than can be listed: see `bulkheadctl volume orphans` there"));
                }
            }
            Err(why) => notes.push(format!("what is on {node} is unknown: {why}")),
        }
    }
    let mut all = lost.json();
    all["orphanedVolumes"] = json.into();
    Ok(Report::new(all, lost.table().and(rows).noting(notes)))
}
