//! `volumes`: lists volumes once, or as they change.

use std::pin::pin;

use bulkhead_frontend::quantity::Quantity;
use bulkhead_frontend::report::{Report, Table};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::Value;

use crate::cluster::{Cluster, Failure, Volume};
use crate::options::Output;

/// How many columns are shown unless more are requested.
const NARROW: usize = 5;

pub async fn list(cluster: &Cluster, wide: bool) -> Result<Report, Failure> {
    let volumes = cluster.volumes().await?;
    let json = volumes.iter().map(Volume::json).collect();
    let headings = ["volume", "node", "claim", "size", "phase", "class", "mode", "policy"];
    let table = Table::headed(headings, volumes.iter().map(row));
    let table = if wide { table } else { table.narrowed(NARROW) };
    Ok(Report::new(json, table))
}

/// Prints all volumes, and then each that changes, until interrupted.
pub async fn watch(cluster: &Cluster, output: Option<Output>) -> Result<(), Failure> {
    let objects: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let events = watcher(objects, watcher::Config::default()).default_backoff().applied_objects();
    let mut events = pin!(events);
    loop {
        match events.try_next().await {
            Ok(Some(object)) => {
                if let Some(volume) = cluster.volume(&object) {
                    let table = Table::rows([row(&volume)]);
                    let table = if output == Some(Output::Wide) { table } else { table.narrowed(NARROW) };
                    crate::print(&Report::new(volume.json(), table), output)?;
                }
            }
            Ok(None) => return Ok(()),
            // The watcher tries again.
            Err(error) => eprintln!("kubectl bulkhead: watching is interrupted: {error}"),
        }
    }
}

fn row(volume: &Volume) -> [String; 8] {
    [
        volume.name.clone(),
        volume.node.clone(),
        volume.claim_name(),
        Quantity::from(volume.bytes).to_string(),
        volume.phase.clone(),
        volume.class.clone(),
        volume.mode.clone(),
        volume.policy.clone(),
    ]
}

/// The volumes as JSON.
pub fn json(volumes: &[&Volume]) -> Value {
    volumes.iter().map(|volume| volume.json()).collect()
}
