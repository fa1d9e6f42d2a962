//! Publishing block volumes.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::CsiClient;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::volume_capability::access_mode::Mode;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use tonic::Code;

cases! {
    publish_puts_a_device_at_the_target,
    publish_again_makes_no_second_mount_or_loop_device,
    publish_again_after_restarts_leaves_the_device_alone,
    two_targets_share_one_device,
    read_only_beside_read_write_is_refused,
    a_device_for_readers_refuses_writes,
    the_last_target_releases_the_device_once,
    one_writer_means_one_target,
    the_kubelets_lock_over_the_device_harms_nothing,
    a_dying_device_is_never_doubled,
    numbers_are_taken_in_rotation,
    a_new_volume_reads_zeros: Filesystem,
    parameters_choose_block_size_and_sparseness: Filesystem,
    a_filesystem_on_the_device_can_be_used,
}

const SIZE: i64 = 16 * MIB;

/// Creates `vol-a` and returns a client and where to publish it.
fn volume(rig: &Rig) -> Result<(CsiClient, PathBuf)> {
    let csi = rig.csi()?;
    csi.create_volume(create("vol-a", SIZE, block()))?;
    Ok((csi, rig.target("a")))
}

fn publish_puts_a_device_at_the_target(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.node_publish_volume(publish("vol-a", target, block()))?;
    ensure!(target.metadata()?.file_type().is_block_device(), "{:?}", target.metadata()?);
    let mounted = mounts::at(target)?;
    ensure!(mounted.len() == 1 && mounted[0].has("nosuid") && !mounted[0].has("nodev"), "{mounted:?}");
    let device = rig.pool().only_device()?;
    ensure!(device.size()? == u64::try_from(SIZE)? && !device.read_only && !device.autoclear, "{device:?}");
    let file = File::options().read(true).write(true).open(target)?;
    file.write_all_at(b"content", 1 << 20)?;
    file.sync_all()?;
    drop(file);
    let mut found = [0; 7];
    File::open(rig.pool().image("vol-a"))?.read_exact_at(&mut found, 1 << 20)?;
    ensure!(&found == b"content", "{found:?}");
    Ok(())
}

fn publish_again_makes_no_second_mount_or_loop_device(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.node_publish_volume(publish("vol-a", target, block()))?;
    let (mount, device) = (mounts::at(target)?, rig.pool().only_device()?);
    for _ in 0..4 {
        csi.node_publish_volume(publish("vol-a", target, block()))?;
    }
    ensure!(mounts::at(target)? == mount && rig.pool().only_device()? == device);
    Ok(())
}

fn publish_again_after_restarts_leaves_the_device_alone(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.node_publish_volume(publish("vol-a", target, block()))?;
    let (mount, device) = (mounts::at(target)?, rig.pool().only_device()?);
    rig.restart()?;
    rig.csi()?.node_publish_volume(publish("vol-a", target, block()))?;
    ensure!(mounts::at(target)? == mount);
    let after = rig.pool().only_device()?;
    ensure!((after.path, after.backing_inode) == (device.path, device.backing_inode));
    Ok(())
}

fn two_targets_share_one_device(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    let other = rig.target("b");
    csi.node_publish_volume(publish("vol-a", target, block()))?;
    csi.node_publish_volume(publish("vol-a", &other, block()))?;
    let device = rig.pool().only_device()?;
    File::options().write(true).open(target)?.write_all_at(b"content", 0)?;
    let mut found = [0; 7];
    File::open(&other)?.read_exact_at(&mut found, 0)?;
    ensure!(&found == b"content", "{found:?}");
    csi.node_unpublish_volume(unpublish("vol-a", &other))?;
    ensure!(rig.pool().only_device()? == device && target.metadata()?.file_type().is_block_device());
    Ok(())
}

fn read_only_beside_read_write_is_refused(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    let other = rig.target("b");
    csi.node_publish_volume(publish("vol-a", target, block()))?;
    let beside = csi.node_publish_volume(publish_read_only("vol-a", &other, block()));
    refused(beside, Code::FailedPrecondition, "vol-a")?;
    ensure!(!other.exists());
    let here = csi.node_publish_volume(publish_read_only("vol-a", target, block()));
    ensure!(here.is_err());
    csi.node_unpublish_volume(unpublish("vol-a", target))?;
    csi.node_publish_volume(publish_read_only("vol-a", &other, block()))?;
    refused(csi.node_publish_volume(publish("vol-a", target, block())), Code::FailedPrecondition, "vol-a")?;
    ensure!(rig.pool().only_device()?.read_only);
    Ok(())
}

fn a_device_for_readers_refuses_writes(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    for request in [
        publish_read_only("vol-a", target, block()),
        publish("vol-a", target, block_in(Mode::MultiNodeReaderOnly)),
        publish("vol-a", target, block_in(Mode::SingleNodeReaderOnly)),
    ] {
        csi.node_publish_volume(request)?;
        ensure!(rig.pool().only_device()?.read_only);
        let written = File::options().write(true).open(target).and_then(|file| file.write_all_at(b"x", 0));
        ensure!(written.is_err(), "a reader has written");
        csi.node_unpublish_volume(unpublish("vol-a", target))?;
    }
    Ok(())
}

fn the_last_target_releases_the_device_once(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.create_volume(create("vol-b", SIZE, block()))?;
    let other = rig.target("b");
    csi.node_publish_volume(publish("vol-a", target, block()))?;
    csi.node_unpublish_volume(unpublish("vol-a", target))?;
    csi.node_publish_volume(publish("vol-b", &other, block()))?;
    let device = rig.pool().only_device()?;
    // Repeating the first volume's unpublish must not take away a device that now serves another volume.
    csi.node_unpublish_volume(unpublish("vol-a", target))?;
    ensure!(rig.pool().only_device()? == device);
    Ok(())
}

fn one_writer_means_one_target(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    for mode in [Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter] {
        csi.node_publish_volume(publish("vol-a", target, block_in(mode)))?;
        let second = csi.node_publish_volume(publish("vol-a", &rig.target("b"), block_in(mode)));
        refused(second, Code::FailedPrecondition, "vol-a")?;
        ensure!(!rig.target("b").exists());
        rig.pool().only_device()?;
        csi.node_unpublish_volume(unpublish("vol-a", target))?;
    }
    Ok(())
}

/// A kubelet binds a block volume's device to a path of its own, and puts a loop device over it.
fn the_kubelets_lock_over_the_device_harms_nothing(rig: &mut Rig) -> Result<()> {
    let (csi, _) = &volume(rig)?;
    let target = rig.kubelet.prepare_block("vol-a", "pv-a", "pod-1")?;
    csi.node_publish_volume(publish("vol-a", &target, block()))?;
    let global = rig.kubelet.map_globally(&target, "pv-a", "pod-1")?;
    let lock = loops::attach(&global)?;
    // Publishing again finds the device by its backing file, not by its number.
    csi.node_publish_volume(publish("vol-a", &target, block()))?;
    rig.pool().only_device()?;
    ensure!(csi.node_get_volume_stats(stats("vol-a", &global))?.usage[0].total == SIZE);
    csi.node_expand_volume(node_expand("vol-a", &target, 2 * SIZE))?;
    ensure!(rig.pool().only_device()?.size()? == u64::try_from(2 * SIZE)?);
    rig.restart_helper()?;
    rig.csi()?.node_publish_volume(publish("vol-a", &target, block()))?;
    rig.pool().only_device()?;
    loops::detach(&lock)?;
    rig.kubelet.unmap_globally(&global)?;
    Ok(())
}

fn a_dying_device_is_never_doubled(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.node_publish_volume(publish("vol-a", target, block()))?;
    let device = rig.pool().only_device()?;
    let open = File::options().read(true).write(true).open(&device.path)?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", target)), Code::Aborted, "open")?;
    // It is published again while a process has it open: the same device remains in use.
    csi.node_publish_volume(publish("vol-a", target, block()))?;
    let revived = rig.pool().only_device()?;
    ensure!(revived.path == device.path, "{revived:?} beside {device:?}");
    drop(open);
    let revived = rig.pool().only_device()?;
    ensure!(!revived.autoclear, "{revived:?}");
    File::options().write(true).open(target)?.write_all_at(b"content", 0)?;
    Ok(())
}

fn numbers_are_taken_in_rotation(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    let mut last = None;
    for _ in 0..3 {
        csi.node_publish_volume(publish("vol-a", target, block()))?;
        let number = rig.pool().only_device()?.number();
        ensure!(number != last, "number {number:?} was just given back");
        last = number;
        csi.node_unpublish_volume(unpublish("vol-a", target))?;
    }
    Ok(())
}

fn a_new_volume_reads_zeros(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let target = rig.target("a");
    for round in 0..2 {
        csi.create_volume(create("vol-a", SIZE, block()))?;
        csi.node_publish_volume(publish("vol-a", &target, block()))?;
        let mut device = File::options().read(true).write(true).open(&target)?;
        let mut content = Vec::new();
        device.read_to_end(&mut content)?;
        ensure!(content.len() == usize::try_from(SIZE)?, "{} bytes", content.len());
        ensure!(content.iter().all(|byte| *byte == 0), "round {round} finds what an earlier volume held");
        device.seek(SeekFrom::Start(0))?;
        device.write_all(&vec![0x5a; usize::try_from(SIZE)?])?;
        device.sync_all()?;
        drop(device);
        csi.node_unpublish_volume(unpublish("vol-a", &target))?;
        csi.delete_volume(delete("vol-a"))?;
    }
    Ok(())
}

fn parameters_choose_block_size_and_sparseness(rig: &mut Rig) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let csi = rig.csi()?;
    let target = rig.target("a");
    for (pairs, block_size, sparse) in
        [(parameters(&[]), 512, false), (parameters(&[("blockSize", "4096"), ("sparse", "true")]), 4096, true)]
    {
        csi.create_volume(CreateVolumeRequest { parameters: pairs, ..create("vol-a", SIZE, block()) })?;
        csi.node_publish_volume(publish("vol-a", &target, block()))?;
        ensure!(rig.pool().only_device()?.block_size == block_size, "{:?}", rig.pool().only_device()?);
        let image = fs::metadata(rig.pool().image("vol-a"))?;
        ensure!(
            (image.blocks() * 512 < image.len()) == sparse,
            "{} of {} allocated",
            image.blocks() * 512,
            image.len()
        );
        csi.node_unpublish_volume(unpublish("vol-a", &target))?;
        csi.delete_volume(delete("vol-a"))?;
    }
    Ok(())
}

fn a_filesystem_on_the_device_can_be_used(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.node_publish_volume(publish("vol-a", target, block()))?;
    run(Command::new("mkfs.ext4").arg("-q").arg(target))?;
    let inside = rig.work().join("inside");
    fs::create_dir(&inside)?;
    run(Command::new("mount").args(["-t", "ext4"]).arg(target).arg(&inside))?;
    fs::write(inside.join("file"), "content")?;
    refused(csi.node_unpublish_volume(unpublish("vol-a", target)), Code::Aborted, "")?;
    ensure!(fs::read(inside.join("file"))? == b"content");
    rustix::mount::unmount(&inside, rustix::mount::UnmountFlags::NOFOLLOW)?;
    Ok(())
}
