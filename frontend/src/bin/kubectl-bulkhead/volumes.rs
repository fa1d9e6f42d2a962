//! `volumes`: lists volumes once, or as they change.

use std::pin::pin;

use bulkhead_frontend::quantity::Quantity;
use bulkhead_frontend::report::{self, Format, Report, Table};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::Value;

use crate::NAME;
use crate::cluster::{Cluster, Failure, Volume};

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
pub async fn watch(cluster: &Cluster, format: Format, wide: bool) -> Result<(), Failure> {
    let objects: Api<PersistentVolume> = Api::all(cluster.client.clone());
    let events = watcher(objects, watcher::Config::default()).default_backoff().applied_objects();
    let mut events = pin!(events);
    loop {
        match events.try_next().await {
            Ok(Some(object)) => {
                if let Some(volume) = cluster.volume(&object) {
                    let table = Table::rows([row(&volume)]);
                    let table = if wide { table } else { table.narrowed(NARROW) };
                    Report::new(volume.json(), table).print(format)?;
                }
            }
            Ok(None) => return Ok(()),
            // The watcher tries again.
            Err(error) => report::note(NAME, &format!("watching is interrupted: {error}")),
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
