//! Volumes below the kubelet's directory, as seen by the host, whatever is restarted in the meantime.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::VolumeCapability;
use bulkhead_tests::observe::{loops, mounts, quotas};

use crate::node::Node;
use crate::unit::{FRONTEND, HELPER, SOCKET, Unit};

cases! {
    on Node;
    what_is_published_reaches_the_host,
    a_size_is_felt,
    a_restart_of_the_helper_keeps_volumes_published,
    a_restart_of_the_frontend_keeps_volumes_published,
    a_stop_of_everything_keeps_volumes_usable,
    volumes_grow_while_they_are_published,
}

const SIZE: i64 = 16 * MIB;

fn publish_both(node: &Node) -> Result<(PathBuf, PathBuf)> {
    let (directory, device) =
        (node.kubelet.prepare("vol-a", "pv-a", "pod-a")?, node.kubelet.prepare_block("vol-b", "pv-b", "pod-b")?);
    for (id, target, capability) in both(&directory, &device) {
        node.csi()?.create_volume(create(id, SIZE, capability.clone()))?;
        node.csi()?.node_publish_volume(publish(id, target, capability))?;
    }
    check_usable(&directory, &device)?;
    Ok((directory, device))
}

fn both<'a>(directory: &'a Path, device: &'a Path) -> [(&'static str, &'a Path, VolumeCapability); 2] {
    [("vol-a", directory, mount()), ("vol-b", device, block())]
}

/// One mount of each in the namespace of PID 1, and both can be written to.
fn check_usable(directory: &Path, device: &Path) -> Result<()> {
    let table = fs::read_to_string("/proc/1/mountinfo")?;
    for target in [directory, device] {
        let found = table.lines().filter(|line| line.split(' ').nth(4) == target.to_str()).count();
        ensure!(found == 1, "{found} mounts at {}", target.display());
    }
    let flags = mounts::at(directory)?;
    ensure!(flags[0].has("nosuid") && flags[0].has("nodev"), "{flags:?}");
    ensure!(fs::metadata(device)?.file_type().is_block_device(), "no block device");
    File::create(directory.join("file"))?.write_all(b"content")?;
    let device = File::options().read(true).write(true).open(device)?;
    device.write_all_at(&[7; 4096], 8192)?;
    device.sync_all()?;
    Ok(())
}

fn unpublish_both(node: &Node, directory: &Path, device: &Path) -> Result<()> {
    for (id, target, capability) in both(directory, device) {
        let csi = node.csi()?;
        // It is already in place, so this does nothing.
        csi.node_publish_volume(publish(id, target, capability))?;
        ensure!(mounts::at(target)?.len() == 1, "{} is mounted twice", target.display());
        csi.node_unpublish_volume(unpublish(id, target))?;
        ensure!(mounts::at(target)?.is_empty() && fs::symlink_metadata(target).is_err());
        csi.delete_volume(delete(id))?;
    }
    Ok(())
}

fn what_is_published_reaches_the_host(node: &mut Node) -> Result<()> {
    let (directory, device) = publish_both(node)?;
    ensure!(loops::backed_by(&node.pool.device()?)?.len() == 1);
    unpublish_both(node, &directory, &device)
}

fn a_size_is_felt(node: &mut Node) -> Result<()> {
    let (directory, device) = publish_both(node)?;
    let limits = quotas::blocks(&node.pool.directory)?;
    ensure!(limits.iter().any(|quota| quota.limit == 16 << 10), "{limits:?}");
    let full = fs::write(directory.join("file"), vec![1; 17 << 20]).err().context("more than its size fits")?;
    ensure!(full.raw_os_error().is_some_and(|code| matches!(code, 28 | 122)), "{full}");
    unpublish_both(node, &directory, &device)
}

fn restarted(node: &Node, unit: Unit) -> Result<()> {
    let (directory, device) = publish_both(node)?;
    let open = File::options().append(true).open(directory.join("file"))?;
    unit.restart()?;
    node.wait()?;
    (&open).write_all(b", and more")?;
    drop(open);
    ensure!(fs::read_to_string(directory.join("file"))? == "content, and more");
    check_usable(&directory, &device)?;
    unpublish_both(node, &directory, &device)
}

fn a_restart_of_the_helper_keeps_volumes_published(node: &mut Node) -> Result<()> {
    restarted(node, HELPER)
}

fn a_restart_of_the_frontend_keeps_volumes_published(node: &mut Node) -> Result<()> {
    restarted(node, FRONTEND)
}

fn a_stop_of_everything_keeps_volumes_usable(node: &mut Node) -> Result<()> {
    let (directory, device) = publish_both(node)?;
    for unit in [SOCKET, HELPER, FRONTEND] {
        unit.stop()?;
    }
    check_usable(&directory, &device)?;
    node.start()?;
    check_usable(&directory, &device)?;
    unpublish_both(node, &directory, &device)
}

fn volumes_grow_while_they_are_published(node: &mut Node) -> Result<()> {
    let (directory, device) = publish_both(node)?;
    for (id, target, _) in both(&directory, &device) {
        node.csi()?.node_expand_volume(node_expand(id, target, 2 * SIZE))?;
        let total = node.csi()?.node_get_volume_stats(stats(id, target))?.usage[0].total;
        ensure!(total == 2 * SIZE, "{id} has {total} bytes");
    }
    unpublish_both(node, &directory, &device)
}
