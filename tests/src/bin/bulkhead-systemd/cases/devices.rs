//! A label that a pod writes to its device gives the device no name on the host.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::observe::loops;
use bulkhead_tests::pool::run;

use crate::node::Node;
use crate::unit::output;

cases! {
    on Node;
    a_label_in_a_volume_is_no_name_on_the_host,
}

fn a_label_in_a_volume_is_no_name_on_the_host(node: &mut Node) -> Result<()> {
    let csi = node.csi()?;
    let target = node.kubelet.prepare_block("vol-b", "pv-b", "pod-b")?;
    csi.create_volume(create("vol-b", 16 * MIB, block()))?;
    csi.node_publish_volume(publish("vol-b", &target, block()))?;
    let device = loops::backed_by(&node.pool.device()?)?.first().context("no loop device")?.path.clone();
    label(&target, "of-a-tenant")?;
    look_again(&device)?;
    ensure!(names(&device)?.is_empty(), "{:?}", names(&device)?);
    // Neither when it comes anew with the label on it.
    csi.node_unpublish_volume(unpublish("vol-b", &target))?;
    csi.node_publish_volume(publish("vol-b", &target, block()))?;
    let device = loops::backed_by(&node.pool.device()?)?.first().context("no loop device")?.path.clone();
    look_again(&device)?;
    ensure!(names(&device)?.is_empty(), "{:?}", names(&device)?);
    ensure!(!Path::new("/dev/disk/by-label/of-a-tenant").exists());
    csi.node_unpublish_volume(unpublish("vol-b", &target))?;
    csi.delete_volume(delete("vol-b"))?;

    // The host's own loop devices get theirs as before.
    let image = node.work.join("image");
    File::create(&image)?.set_len(16 << 20)?;
    label(&image, "of-the-host")?;
    let device = PathBuf::from(output(Command::new("losetup").args(["--find", "--show"]).arg(&image))?);
    look_again(&device)?;
    let found = names(&device);
    run(Command::new("losetup").arg("--detach").arg(&device))?;
    let found = found?;
    ensure!(found.contains(&PathBuf::from("/dev/disk/by-label/of-the-host")), "the host's device has only {found:?}");
    Ok(())
}

fn label(device: &Path, label: &str) -> Result<()> {
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-L", label]).arg(device))
}

/// Has udev look at a device, and waits until it has.
fn look_again(device: &Path) -> Result<()> {
    let name = device.file_name().context("a device without a name")?;
    run(Command::new("udevadm").args(["trigger", "--action=change"]).arg(Path::new("/sys/block").join(name)))?;
    run(Command::new("udevadm").arg("settle"))
}

/// The links below /dev/disk that lead to a device.
fn names(device: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for directory in fs::read_dir("/dev/disk")? {
        for link in fs::read_dir(directory?.path())? {
            let link = link?.path();
            if fs::canonicalize(&link).is_ok_and(|target| target == device) {
                found.push(link);
            }
        }
    }
    Ok(found)
}
