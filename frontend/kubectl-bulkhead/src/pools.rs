//! `pools`: the pools of all nodes as their agents know them; `capacity`: the room that the scheduler relies on.

use std::collections::BTreeMap;

use bulkhead_console::report::{Report, Table};
use bulkhead_model::quantity::Quantity;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Stored;
use serde_json::{Value, json};

use crate::agents::{self, Pool};
use crate::classes;
use crate::cluster::{Cluster, Failure};
use crate::nodes::{self, bytes};

/// What is said of a pool that takes no new volumes, and what that means.
pub const CORDONED: (&str, &str) =
    ("cordoned", "an operator wants it to take no new volumes; `kubectl bulkhead uncordon NODE/POOL` ends that");

pub async fn list(cluster: &Cluster, wide: bool) -> Result<Report, Failure> {
    let members = nodes::members(cluster).await?;
    let pods = members.iter().filter_map(|(node, member)| Some((node, member.pod.as_ref()?)));
    let mut read = agents::read_all(cluster, pods).await;
    let (mut json, mut rows) = (Vec::new(), Vec::new());
    // What the words in the last column mean, and why nothing is known of some nodes.
    let (mut meanings, mut unknown_on) = (BTreeMap::new(), BTreeMap::<String, Vec<&str>>::new());
    for (node, member) in members.iter().filter(|(_, member)| member.exists) {
        let host_service = || Err("no pod to ask: see `bulkheadctl pool list` on the node".to_owned());
        match read.remove(node).unwrap_or_else(host_service) {
            Ok(agent) => {
                json.extend(agent.pools.iter().map(|(name, pool)| described(node, name, pool)));
                rows.extend(agent.pools.iter().map(|(name, pool)| row(node, name, pool)));
                let kinds = agent.pools.values().flat_map(|pool| &pool.conditions);
                meanings.extend(kinds.map(|kind| (kind.name, kind.meaning)));
                meanings.extend(agent.pools.values().filter(|pool| pool.is_cordoned).map(|_| CORDONED));
            }
            Err(why) => {
                json.push(json!({ "node": node, "availableBytes": member.available, "unknown": why }));
                rows.push(unknown(node, member.available));
                unknown_on.entry(why).or_default().push(node);
            }
        }
    }
    let headings = [
        "node", "pool", "size", "available", "promised", "used", "volumes", "condition", "largest-volume",
        "free-inodes", "emptying", "abnormal",
    ];
    let meanings = meanings.iter().map(|(name, meaning)| format!("{name}: {meaning}"));
    let unknown = unknown_on.iter().map(|(why, nodes)| format!("unknown on {}: {why}", nodes.join(", ")));
    let table = Table::headed(headings, rows).noting(meanings.chain(unknown));
    Ok(Report::new(json.into(), if wide { table } else { table.narrowed(8) }))
}

fn row(node: &str, name: &str, pool: &Pool) -> [String; 12] {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let cordoned = pool.is_cordoned.then_some(CORDONED.0);
    let conditions: Vec<_> = pool.conditions.iter().map(|kind| kind.name).chain(cordoned).collect();
    [
        node.to_owned(),
        name.to_owned(),
        size(pool.size),
        size(pool.available),
        size(pool.promised),
        size(pool.used),
        number(pool.volumes),
        if conditions.is_empty() { "healthy".to_owned() } else { conditions.join(",") },
        size(pool.largest_volume),
        pool.inode_count().map_or_else(|| "-".to_owned(), |inodes| inodes.to_string()),
        number(pool.emptying),
        number(pool.abnormal),
    ]
}

/// The row of a node whose agent cannot be queried. What it has published is still known.
fn unknown(node: &str, available: Option<u64>) -> [String; 12] {
    let mut row = [const { String::new() }; 12].map(|_| "-".to_owned());
    row[0] = node.to_owned();
    row[3] = size(available);
    row[7] = "unknown".to_owned();
    row
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| Quantity::from(bytes).to_string())
}

fn described(node: &str, name: &str, pool: &Pool) -> Value {
    json!({
        "node": node, "pool": name, "totalBytes": pool.size, "availableBytes": pool.available,
        "largestVolumeBytes": pool.largest_volume, "promisedBytes": pool.promised, "usedBytes": pool.used,
        "volumes": pool.volumes, "emptying": pool.emptying, "abnormalVolumes": pool.abnormal,
        "inodes": pool.inodes, "freeInodes": pool.free_inodes,
        "filesystems": pool.filesystems, "filesystemLimit": pool.filesystem_limit,
        "cordoned": pool.is_cordoned,
        "conditions": pool.conditions.iter().map(|kind| kind.name).collect::<Vec<_>>(),
    })
}

pub async fn capacity(cluster: &Cluster) -> Result<Report, Failure> {
    let capacities = cluster.capacities().await?;
    let flaws = classes::flaws(cluster, None).await?;
    let reason = |capacity: &CSIStorageCapacity| flaws.get(&capacity.storage_class_name).cloned().flatten();
    let json = capacities.iter().map(|(node, capacity)| {
        json!({
            "node": node, "storageClass": capacity.storage_class_name,
            "availableBytes": bytes(capacity.capacity.as_ref()),
            "largestVolumeBytes": bytes(capacity.maximum_volume_size.as_ref()),
            "reason": reason(capacity),
        })
    });
    let row = |(node, capacity): &(String, CSIStorageCapacity)| {
        let size = |stored: Option<&Stored>| size(Some(bytes(stored)));
        let largest = size(capacity.maximum_volume_size.as_ref());
        let why = reason(capacity).map_or_else(|| "-".to_owned(), |_| "class-invalid".to_owned());
        [node.clone(), capacity.storage_class_name.clone(), size(capacity.capacity.as_ref()), largest, why]
    };
    let headings = ["node", "class", "available", "largest-volume", "reason"];
    let invalid = flaws.iter().filter_map(|(class, flaw)| Some(format!("{class}: {}", flaw.as_ref()?)));
    let table = Table::headed(headings, capacities.iter().map(row)).noting(invalid);
    Ok(Report::new(json.collect(), table))
}
