//! Snapshots, with a real snapshot controller: agents take them, keep them and delete them, and make volumes from them.

mod changed_blocks;
mod groups;
mod life;
mod placement;
mod programs;
mod refused;
mod unusual;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::case::Case;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::agent::Agent;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{block, claim, handle, on};
use serde_json::Value;

/// The tests.
pub fn cases() -> Vec<Case<Cluster>> {
    let modules = [
        life::cases(),
        groups::cases(),
        placement::cases(),
        programs::cases(),
        refused::cases(),
        unusual::cases(),
        changed_blocks::cases(),
    ];
    modules.concat()
}

/// The size of the volumes.
const SIZE: &str = "16Mi";

/// A claim for a device.
fn device(cluster: &Cluster, name: &str) -> Value {
    block(claim(name, &cluster.class, SIZE))
}

/// Makes a claim for a device on `node`, and returns its PersistentVolume's name.
fn made(cluster: &Cluster, name: &str, node: &str) -> Result<String> {
    cluster.create_claim(&on(device(cluster, name), node))?;
    cluster.bound(name)?.metadata.name.context("a name")
}

/// The image of a volume, by its PersistentVolume's name.
fn image(agent: &Agent, object: &str) -> PathBuf {
    agent.rig.pool().volume(handle(object)).join("image")
}

/// Writes a mark into a volume.
fn write(agent: &Agent, object: &str, mark: &str) -> Result<()> {
    let file = OpenOptions::new().write(true).open(image(agent, object))?;
    file.write_all_at(mark.as_bytes(), 0)?;
    Ok(file.sync_all()?)
}

/// Checks that a volume has this mark.
fn has(agent: &Agent, object: &str, mark: &str) -> Result<()> {
    let mut found = vec![0; mark.len()];
    OpenOptions::new().read(true).open(image(agent, object))?.read_exact_at(&mut found, 0)?;
    ensure!(found == mark.as_bytes(), "{object} has {:?}, not {mark:?}", String::from_utf8_lossy(&found));
    Ok(())
}

/// Waits until a claim is bound, checks that its volume is on `node`, and returns its PersistentVolume's name.
fn bound_on(cluster: &Cluster, name: &str, node: &str) -> Result<String> {
    let volume = cluster.bound(name)?;
    let labels = volume.metadata.labels.unwrap_or_default();
    ensure!(labels.get(TOPOLOGY_KEY).is_some_and(|found| found == node), "{name} is not on {node}: {labels:?}");
    volume.metadata.name.context("a name")
}
