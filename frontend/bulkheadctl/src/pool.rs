//! Commands on pools.

use bulkhead_console::report::{Report, Table};
use bulkhead_frontend::proto::inspection::{ListPoolsRequest, Pool};
use bulkhead_model::quantity::Quantity;
use bulkhead_model::volumes::InodeCount;
use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::Failure;

pub async fn list(mut client: Client) -> Result<Report, Failure> {
    let pools = client.inspection.list_pools(ListPoolsRequest {}).await?.into_inner().pools;
    let headings =
        ["pool", "total", "available", "promised", "used", "free-inodes", "volumes", "emptying", "condition"];
    let told = |pool: &Pool| pool.conditions.iter().map(|text| format!("{}: {text}", pool.name)).collect::<Vec<_>>();
    let table = Table::headed(headings, pools.iter().map(row)).noting(pools.iter().flat_map(told));
    Ok(Report::new(pools.iter().map(described).collect(), table))
}

fn row(pool: &Pool) -> [String; 9] {
    let size = |bytes| if pool.served { Quantity::from(bytes).to_string() } else { "-".to_owned() };
    let number = |number: u32| if pool.served { number.to_string() } else { "-".to_owned() };
    let inodes = pool.inodes.zip(pool.free_inodes).map(|(total, free)| InodeCount { total, free });
    let condition = match pool.condition_names.as_slice() {
        [] if pool.conditions.is_empty() => "healthy".to_owned(),
        // An older frontend gives no names.
        [] => "abnormal".to_owned(),
        names => names.join(","),
    };
    [
        pool.name.clone(),
        size(pool.total_bytes),
        size(pool.available_bytes),
        size(pool.promised_bytes),
        size(pool.used_bytes),
        inodes.map_or_else(|| "-".to_owned(), |inodes| inodes.to_string()),
        number(pool.volumes),
        number(pool.emptying),
        condition,
    ]
}

fn described(pool: &Pool) -> Value {
    json!({
        "name": pool.name,
        "served": pool.served,
        "enforced": pool.enforced,
        "totalBytes": pool.total_bytes,
        "availableBytes": pool.available_bytes,
        "promisedBytes": pool.promised_bytes,
        "usedBytes": pool.used_bytes,
        "volumes": pool.volumes,
        "emptying": pool.emptying,
        "inodes": pool.inodes,
        "freeInodes": pool.free_inodes,
        "filesystems": pool.filesystems,
        "filesystemLimit": pool.filesystem_limit,
        "snapshots": pool.snapshots,
        "extentLimit": pool.extent_limit,
        "snapshotBytes": pool.snapshot_bytes,
        "conditions": pool.conditions,
        "conditionNames": pool.condition_names,
    })
}
