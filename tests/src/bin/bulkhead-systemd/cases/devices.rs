//! A label that a pod writes to its device must not give the device a name on the host.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::attacker::{Attempt, attempt};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::observe::loops;
use bulkhead_tests::pool::run;

use crate::node::Node;

cases! {
    on Node;
    a_label_in_a_volume_is_no_name_on_the_host,
    a_label_in_a_partition_that_a_pod_has_made_is_no_name_on_the_host,
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
    // Nor when the device appears again with the label on it.
    csi.node_unpublish_volume(unpublish("vol-b", &target))?;
    csi.node_publish_volume(publish("vol-b", &target, block()))?;
    let device = loops::backed_by(&node.pool.device()?)?.first().context("no loop device")?.path.clone();
    look_again(&device)?;
    ensure!(names(&device)?.is_empty(), "{:?}", names(&device)?);
    ensure!(!Path::new("/dev/disk/by-label/of-a-tenant").exists());
    csi.node_unpublish_volume(unpublish("vol-b", &target))?;
    csi.delete_volume(delete("vol-b"))?;

    // The host's own loop devices still get their names.
    let image = node.work.join("image");
    File::create(&image)?.set_len(16 << 20)?;
    label(&image, "of-the-host")?;
    // A device that is free may be one that the helper keeps ready, which has no names either. This one is nobody's.
    let device = PathBuf::from("/dev/loop99");
    run(Command::new("losetup").args([&device, &image]))?;
    look_again(&device)?;
    let found = names(&device);
    loops::detach(&device)?;
    let found = found?;
    ensure!(found.contains(&PathBuf::from("/dev/disk/by-label/of-the-host")), "the host's device has only {found:?}");
    Ok(())
}

fn a_label_in_a_partition_that_a_pod_has_made_is_no_name_on_the_host(node: &mut Node) -> Result<()> {
    let csi = node.csi()?;
    let target = node.kubelet.prepare_block("vol-b", "pv-b", "pod-b")?;
    csi.create_volume(create("vol-b", 16 * MIB, block()))?;
    csi.node_publish_volume(publish("vol-b", &target, block()))?;
    let device = loops::backed_by(&node.pool.device()?)?.first().context("no loop device")?.path.clone();
    // A partition of 8 MiB that starts after the first MiB; the mark moves the start of the device by a sector.
    let mut table = [0; 512];
    table[446 + 4] = 0x83;
    table[446 + 8..446 + 16].copy_from_slice(&[0, 8, 0, 0, 0, 0x40, 0, 0]);
    table[510..].copy_from_slice(&[0x55, 0xaa]);
    File::options().write(true).open(&target)?.write_all_at(&table, 512)?;
    ensure!(attempt(Attempt::Mark, &target, true, &target)? == 0, "the kernel asks no capability for this");
    run(Command::new("udevadm").arg("settle"))?;
    let partition = PathBuf::from(format!("{}p1", device.display()));
    label(&partition, "of-a-partition")?;
    look_again(&partition)?;
    let found = names(&partition)?;
    ensure!(found.is_empty(), "{found:?}");
    csi.node_unpublish_volume(unpublish("vol-b", &target))?;
    ensure!(!partition.exists(), "the partition outlives the device");
    csi.delete_volume(delete("vol-b")).map(drop)?;
    Ok(())
}

fn label(device: &Path, label: &str) -> Result<()> {
    run(Command::new("mkfs.ext4").args(["-q", "-F", "-L", label]).arg(device))
}

/// Makes udev look at a device, and waits until it has.
fn look_again(device: &Path) -> Result<()> {
    let name = device.file_name().context("a device without a name")?;
    let device = Path::new("/sys/class/block").join(name);
    run(Command::new("udevadm").args(["trigger", "--action=change", "--settle"]).arg(device))
}

/// The links below /dev/disk that point to a device.
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
