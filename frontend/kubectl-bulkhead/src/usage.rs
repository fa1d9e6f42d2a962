//! How much of each volume is used, as the kubelets measure it for the pods that have it.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, stream};
use http::StatusCode;
use serde::Deserialize;

use crate::agents::SIDE_BY_SIDE;
use crate::cluster::Cluster;
use crate::proxy::{self, Unread};

/// The longest answer that is read: 110 pods with ten containers and volumes each take a tenth of it.
const LONGEST: usize = 16 << 20;

/// The bytes that are used in the volume of each claim (namespace and name), and the nodes that do not say, each with
/// the reason.
pub struct Usage {
    pub of_claims: BTreeMap<(String, String), u64>,
    pub unknown: BTreeMap<String, String>,
}

/// A kubelet's summary, as far as it is about claims.
///
/// Source: k8s.io/kubelet, `stats/v1alpha1.Summary`.
#[derive(Deserialize)]
struct Summary {
    #[serde(default)]
    pods: Vec<Pod>,
}

#[derive(Deserialize)]
struct Pod {
    #[serde(default)]
    volume: Vec<Volume>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    used_bytes: Option<u64>,
    pvc_ref: Option<Claim>,
}

#[derive(Deserialize)]
struct Claim {
    namespace: String,
    name: String,
}

/// Asks the kubelets of `nodes`.
pub async fn read(cluster: &Cluster, nodes: BTreeSet<String>) -> Usage {
    let mut usage = Usage { of_claims: BTreeMap::new(), unknown: BTreeMap::new() };
    let asked = stream::iter(nodes).map(|node| async move { (of_node(cluster, &node).await, node) });
    for (answer, node) in asked.buffer_unordered(SIDE_BY_SIDE).collect::<Vec<_>>().await {
        match answer {
            Ok(summary) => usage.of_claims.extend(claims(summary)),
            Err(why) => {
                usage.unknown.insert(node, why.to_string());
            }
        }
    }
    usage
}

async fn of_node(cluster: &Cluster, node: &str) -> Result<Summary, Unread> {
    let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
    let right = || "nodes/proxy or nodes/stats".to_owned();
    let (status, text) = proxy::get(&cluster.client, &path, LONGEST, right).await?;
    if status != StatusCode::OK {
        return Err(Unread::Status(status));
    }
    serde_json::from_str(&text).map_err(|error| Unread::Answer(error.into()))
}

fn claims(summary: Summary) -> impl Iterator<Item = ((String, String), u64)> {
    let volumes = summary.pods.into_iter().flat_map(|pod| pod.volume);
    volumes.filter_map(|volume| {
        let Claim { namespace, name } = volume.pvc_ref?;
        Some(((namespace, name), volume.used_bytes?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_tells_of_claims() {
        let text = r#"{
            "node": { "nodeName": "a" },
            "pods": [
                { "podRef": { "name": "without" } },
                { "podRef": { "name": "shop-0" }, "volume": [
                    { "name": "data", "usedBytes": 4096, "pvcRef": { "name": "data", "namespace": "shop" } },
                    { "name": "disk", "pvcRef": { "name": "disk", "namespace": "shop" } },
                    { "name": "token", "usedBytes": 12 }
                ] }
            ]
        }"#;
        let found: Vec<_> = claims(serde_json::from_str(text).unwrap()).collect();
        assert_eq!(found, [(("shop".to_owned(), "data".to_owned()), 4096)]);
    }
}
