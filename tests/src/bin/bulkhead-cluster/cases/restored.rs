//! etcd is restored from a backup: what the agents have seen and written since then never was.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::objects::{claim, on};
use bulkhead_tests::cluster::{Cluster, PATIENCE, START};

cases! {
    on Cluster;
    a_claim_made_after_a_restore_is_served: Alone("restores etcd from a backup"),
}

/// The components whose watches would otherwise go on from a future that is lost.
const WATCHERS: [&str; 2] = ["kube-controller-manager", "kube-scheduler"];

/// How long it may take until every watch has resumed, and volumes have been compared with objects again.
const RESUMED: Duration = Duration::from_secs(180);

/// Does something to etcd's files while neither etcd nor the API server is running.
fn while_stopped(cluster: &Cluster, act: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let [server, etcd] = ["kube-apiserver", "etcd"].map(|name| cluster.access.component(name));
    server.hold()?;
    etcd.hold()?;
    let acted = act(&cluster.access.directory().join("etcd"));
    etcd.release();
    server.release();
    acted?;
    cluster.access.wait_until_ready(START)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let copied = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &copied)?,
            false => drop(fs::copy(entry.path(), copied)?),
        }
    }
    Ok(())
}

fn a_claim_made_after_a_restore_is_served(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let backup = cluster.access.directory().join("etcd-backup");
    let new = |name: &str| on(claim(name, &cluster.class, "8Mi"), &node);
    cluster.create_claim(&new("before"))?;
    cluster.create_claim(&new("deleted"))?;
    cluster.bound("before")?;
    let deleted = cluster.bound("deleted")?.metadata.name.context("a name")?;
    while_stopped(cluster, |etcd| copy(etcd, &backup))?;

    // All of this is lost.
    cluster.access.wait(PATIENCE, "claims to be accepted again", || cluster.create_claim(&new("lost")))?;
    cluster.bound("lost")?;
    cluster.delete_claim("deleted")?;
    cluster.volume_gone(&deleted)?;
    for number in 0..40 {
        cluster.patch_claim("before", &serde_json::json!({ "metadata": { "labels": { "n": number.to_string() } } }))?;
    }
    while_stopped(cluster, |etcd| {
        fs::remove_dir_all(etcd)?;
        Ok(fs::rename(&backup, etcd)?)
    })?;
    for name in WATCHERS {
        cluster.access.component(name).kill()?;
    }

    cluster.agents[0].has_logged("etcd has been restored from a backup")?;
    cluster.access.wait(PATIENCE, "claims to be accepted again", || cluster.create_claim(&new("after")))?;
    cluster.bound("after")?;
    // The claim whose volume was deleted is back, and bound to nothing. It does not exist for the agent either.
    cluster.access.wait(RESUMED, "the volume to be missed", || {
        let notes = cluster.notes("deleted")?;
        ensure!(notes.iter().any(|note| note.contains("the volume does not exist")), "there are: {notes:?}");
        Ok(())
    })?;
    // The object is deleted once more, though the agent has finished with it already.
    cluster.delete_claim("deleted")?;
    cluster.volume_gone(&deleted)?;
    // The claim that is lost was never published: its volume goes.
    cluster.access.wait(2 * PATIENCE, "the lost claim's volume to be deleted", || {
        let held = cluster.agents[0].volumes()?;
        ensure!(held.len() == 2, "the pool holds {held:?}");
        Ok(())
    })
}
