//! etcd is restored from a backup: what the agents have seen and written since then never was.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::objects::{claim, on};
use bulkhead_tests::cluster::{Cluster, PATIENCE, START};
use bulkhead_tests::csi::requests::unpublish;
use serde_json::json;

use super::adopt;

cases! {
    on Cluster;
    a_claim_made_after_a_restore_is_served: Alone("restores etcd from a backup"),
    volumes_made_since_a_backup_are_brought_back: Bare + Alone("restores etcd from a backup"),
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

/// Makes sure that what is lost is more than what the components write at once when they are back.
fn write_much(cluster: &Cluster, claim: &str) -> Result<()> {
    (0..40).try_for_each(|number| {
        cluster.patch_claim(claim, &json!({ "metadata": { "labels": { "n": number.to_string() } } }))
    })
}

/// Puts the backup in the place of what etcd has.
fn restore(cluster: &Cluster, backup: &Path) -> Result<()> {
    while_stopped(cluster, |etcd| {
        fs::remove_dir_all(etcd)?;
        Ok(fs::rename(backup, etcd)?)
    })?;
    for name in WATCHERS {
        cluster.access.component(name).kill()?;
    }
    cluster.agents[0].has_logged("etcd has been restored from a backup")
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
    write_much(cluster, "before")?;
    restore(cluster, &backup)?;
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
    unused_is_deleted(cluster)
}

/// Of the three volumes, two have objects, or hold data; that of the third claim, which is lost, was never published.
fn unused_is_deleted(cluster: &Cluster) -> Result<()> {
    cluster.access.wait(RESUMED, "the lost claim's volume to be deleted", || {
        let held = cluster.agents[0].volumes()?;
        ensure!(held.len() == 2, "the pool holds {held:?}");
        Ok(())
    })
}

/// Claims and all are lost, while a pod goes on writing.
fn volumes_made_since_a_backup_are_brought_back(cluster: &mut Cluster) -> Result<()> {
    let class = adopt::agent(cluster)?;
    adopt::reachable(cluster)?;
    let node = cluster.node();
    cluster.capacity(&class, &node)?;
    let backup = cluster.access.directory().join("etcd-backup");
    while_stopped(cluster, |etcd| copy(etcd, &backup))?;

    cluster.access.wait(PATIENCE, "claims to be accepted again", || {
        cluster.create_claim(&on(claim("unused", &class, "8Mi"), &node))
    })?;
    cluster.bound("unused")?;
    let (first, file) = adopt::filled(cluster, "first", &class)?;
    let (second, target) = adopt::in_use(cluster, "second", &class)?;
    adopt::noted(cluster, &[&first, &second])?;
    write_much(cluster, "unused")?;
    restore(cluster, &backup)?;

    for name in ["first", "second"] {
        ensure!(cluster.access.run(cluster.claims().get_opt(name))?.is_none(), "{name} is not lost");
    }
    cluster.access.wait(RESUMED, "the volumes to be seen as nobody's", || {
        let dry = adopt::adopt(cluster, &["--with-claims"])?;
        [&first, &second].into_iter().try_for_each(|volume| adopt::is_in_state(&dry, volume, "adopt"))
    })?;
    let done = adopt::adopt(cluster, &["--apply", "--with-claims"])?;
    for (name, volume) in [("first", &first), ("second", &second)] {
        adopt::is_in_state(&done, volume, "adopted")?;
        ensure!(cluster.bound(name)?.metadata.name == Some(format!("{volume}.{node}")), "{name} has another volume");
    }
    ensure!(fs::read_to_string(file)? == adopt::content("first"), "the data of first is not what it was");
    // The pod has noticed nothing.
    ensure!(fs::read_to_string(target.join("file"))? == adopt::content("second"), "nor that of second");
    fs::write(target.join("more"), "written since")?;
    let rig = &cluster.agents[0].rig;
    let inside = rig.pool().volume(&second).join("data/more");
    ensure!(fs::read(inside)? == b"written since", "what was written since is not in the volume");
    let again = adopt::adopt(cluster, &["--apply", "--with-claims"])?;
    for volume in [&first, &second] {
        adopt::is_in_state(&again, volume, "there")?;
    }
    ensure!(again["items"] == json!([]), "a second run has made something: {again}");
    unused_is_deleted(cluster)?;
    rig.csi()?.node_unpublish_volume(unpublish(&second, &target))?;
    adopt::let_go(cluster)
}
