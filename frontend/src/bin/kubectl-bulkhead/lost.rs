//! What refers to nodes that no longer exist.

use bulkhead_frontend::quantity::{Quantity, parse};
use bulkhead_frontend::report::{Report, Table};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Failure, Volume};
use crate::volumes;

/// What nodes that no longer exist have left behind.
pub struct Lost {
    /// Volumes that were on them.
    pub volumes: Vec<Volume>,
    /// Claims that wait for them, each with its node.
    pub claims: Vec<(String, PersistentVolumeClaim)>,
}

impl Lost {
    /// Finds what nodes that no longer exist have left behind.
    pub async fn find(cluster: &Cluster) -> Result<Self, Failure> {
        let nodes = cluster.nodes().await?;
        let mut volumes = cluster.volumes().await?;
        volumes.retain(|volume| !volume.node.is_empty() && !nodes.contains(&volume.node));
        Ok(Self { volumes, claims: cluster.stranded_claims(&nodes).await? })
    }

    /// Only what belongs to `node`.
    pub fn of(mut self, node: &str) -> Self {
        self.volumes.retain(|volume| volume.node == node);
        self.claims.retain(|(waits_for, _)| waits_for == node);
        self
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.claims.is_empty()
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
        let rows = self.volumes.iter().map(volume).chain(self.claims.iter().map(claim));
        Table::headed(["state", "node", "claim", "size", "volume"], rows)
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let waiting: Vec<_> =
            self.claims.iter().map(|(node, claim)| json!({ "node": node, "claim": full_name(claim) })).collect();
        json!({ "volumes": volumes::json(&self.volumes), "waitingClaims": waiting })
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

pub async fn orphans(cluster: &Cluster) -> Result<Report, Failure> {
    let lost = Lost::find(cluster).await?;
    Ok(Report::new(lost.json(), lost.table()))
}
