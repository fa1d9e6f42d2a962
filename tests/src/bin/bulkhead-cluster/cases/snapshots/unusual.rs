//! Clusters that lack what most have: the policies that set labels, or the kinds of snapshots.

use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::objects::{from_snapshot, on};
use bulkhead_tests::cluster::{manifests, snapshots};

use super::{bound_on, device, has, made, write};

cases! {
    on Cluster;
    snapshots_are_found_without_the_policies: Bare + Recent + Alone("removes the policies"),
    snapshots_from_before_the_policies_are_found: Bare + Recent + Alone("removes the policies"),
    without_the_kinds_everything_else_works: Bare + Long + Alone("removes the kinds of snapshots"),
}

/// Runs `test` while the policies that set labels are removed, and then applies them again.
fn without_labels(cluster: &mut Cluster, test: impl FnOnce(&mut Cluster) -> Result<()>) -> Result<()> {
    let kubeconfig = cluster.access.kubeconfig();
    let done = ["bulkhead-claims", "bulkhead-contents", "bulkhead-groups", "bulkhead-sources"]
        .iter()
        .try_for_each(|name| manifests::remove(&kubeconfig, "mutatingadmissionpolicybinding", name))
        .and_then(|()| {
            // A policy remains in effect for a moment after it is deleted.
            std::thread::sleep(Duration::from_secs(2));
            test(cluster)
        });
    // Later tests need the policies even if this one has failed.
    manifests::apply_cluster_wide(&kubeconfig)?;
    done
}

fn set_up(cluster: &mut Cluster) -> Result<()> {
    cluster.class = cluster.add_class(|_| {})?;
    cluster.add_agent()?;
    cluster.add_agent().map(drop)
}

fn snapshots_are_found_without_the_policies(cluster: &mut Cluster) -> Result<()> {
    without_labels(cluster, |cluster| {
        set_up(cluster)?;
        let (first, second) = (cluster.node(), cluster.agents[1].node.clone());
        let class = cluster.add_snapshot_class("daily", |_| {})?;
        let object = made(cluster, "data", &second)?;
        write(&cluster.agents[1], &object, "monday")?;
        cluster.snapshot("monday", "data", &class)?;
        cluster.snapshot_ready("monday")?;
        cluster.agents[1].has_logged("watching all VolumeSnapshotContents")?;
        cluster.create_claim(&on(from_snapshot(device(cluster, "restored"), "monday"), &first))?;
        let restored = bound_on(cluster, "restored", &second)?;
        has(&cluster.agents[1], &restored, "monday")?;
        cluster.delete_snapshot("monday")
    })
}

fn snapshots_from_before_the_policies_are_found(cluster: &mut Cluster) -> Result<()> {
    without_labels(cluster, |cluster| {
        set_up(cluster)?;
        let (class, node) = (cluster.add_snapshot_class("daily", |_| {})?, cluster.node());
        made(cluster, "data", &node)?;
        cluster.agent().rig.kill_frontend()?;
        cluster.snapshot("monday", "data", &class)?;
        // Whatever is written once the policies are back is labelled: let the snapshot controller finish before.
        cluster.access.wait(cluster.patience(), "the snapshot controller", || {
            let snapshot = cluster.ask("GET", &format!("{}/monday", cluster.snapshots()), None)?;
            let bound = &snapshot["status"]["boundVolumeSnapshotContentName"];
            let uid = snapshot["metadata"]["uid"].as_str().unwrap_or_default();
            let content = cluster.ask("GET", &format!("{}/snapcontent-{uid}", snapshots::CONTENTS), None)?;
            ensure!(!content["metadata"]["finalizers"].is_null(), "{bound} has no finalizer yet");
            Ok(())
        })
    })?;
    cluster.wait_until_policies_are_relied_on()?;
    cluster.agent().rig.start_frontend()?;
    cluster.snapshot_ready("monday")?;
    cluster.agents[0].has_logged("watching snapshots by label")?;
    cluster.delete_snapshot("monday")
}

/// An agent asks again every two to four minutes.
const NOTICED: Duration = Duration::from_secs(270);

fn without_the_kinds_everything_else_works(cluster: &mut Cluster) -> Result<()> {
    let kubeconfig = cluster.access.kubeconfig();
    let done = snapshots::remove_resources(&kubeconfig).and_then(|()| {
        set_up(cluster)?;
        let node = cluster.node();
        made(cluster, "data", &node)?;
        let log = cluster.agents[0].log()?;
        ensure!(!log.contains("napshot"), "it speaks of snapshots: {log}");
        Ok(())
    });
    snapshots::define_resources(&kubeconfig)?;
    done?;
    // The controller gives up without them, and is started again.
    cluster.access.component("snapshot-controller").kill()?;
    let class = cluster.add_snapshot_class("daily", |_| {})?;
    cluster.snapshot("monday", "data", &class)?;
    cluster.access.wait(NOTICED, "the agent to notice", || {
        let snapshot = cluster.ask("GET", &format!("{}/monday", cluster.snapshots()), None)?;
        ensure!(snapshot["status"]["readyToUse"] == true, "its status is {}", snapshot["status"]);
        Ok(())
    })?;
    cluster.delete_snapshot("monday")
}
