//! A reboot, after which nothing is started by hand.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::run_options::Phase::{AfterReboot, BeforeReboot};

use crate::node::Node;
use crate::unit::{FRONTEND, HELPER, SOCKET};

cases! {
    on Node;
    a_volume_is_left_published: Reboot(BeforeReboot),
    everything_comes_up_by_itself: Reboot(AfterReboot),
}

fn target(node: &Node) -> Result<PathBuf> {
    node.kubelet.prepare("vol-a", "pv-a", "pod-a")
}

fn a_volume_is_left_published(node: &mut Node) -> Result<()> {
    node.start()?;
    let target = target(node)?;
    node.csi()?.create_volume(create("vol-a", 16 * MIB, mount()))?;
    node.csi()?.node_publish_volume(publish("vol-a", &target, mount()))?;
    fs::write(target.join("file"), "content")?;
    node.leave_as_it_is();
    Ok(())
}

fn everything_comes_up_by_itself(node: &mut Node) -> Result<()> {
    node.wait()?;
    for unit in [SOCKET, HELPER, FRONTEND] {
        unit.check("active")?;
    }
    let target = target(node)?;
    ensure!(mounts::at(&target)?.is_empty(), "it is still published");
    node.csi()?.node_publish_volume(publish("vol-a", &target, mount()))?;
    ensure!(fs::read_to_string(target.join("file"))? == "content");
    node.csi()?.node_unpublish_volume(unpublish("vol-a", &target))?;
    node.csi()?.delete_volume(delete("vol-a"))?;
    Ok(())
}
