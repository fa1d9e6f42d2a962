//! Publishing directory volumes.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::CsiClient;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::volume_capability::access_mode::Mode;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::expect::refused;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::rig::Rig;
use tonic::Code;

cases! {
    publish_makes_the_target_and_binds_the_volume: Filesystem,
    publish_again_makes_no_second_mount,
    publish_again_after_restarts_leaves_the_live_mount_alone,
    the_same_target_in_another_way_already_exists,
    the_same_target_for_another_volume_already_exists,
    one_writer_means_one_target,
    many_pods_of_a_node_share_a_volume,
    readers_cannot_write,
    mount_flags_are_on,
    unknown_mount_flags_are_refused_with_the_list,
    filesystem_is_empty_or_a_pools_own,
    an_unknown_volume_is_not_found,
    the_other_kind_is_refused,
    missing_fields_are_refused,
    long_target_paths_are_accepted,
    data_outlives_publishing,
    an_empty_target_that_is_there_is_used,
    mounts_made_in_one_target_are_in_no_other,
}

const SIZE: i64 = 16 * MIB;

/// Creates `vol-a` and returns a client and where to publish it.
fn volume(rig: &Rig) -> Result<(CsiClient, PathBuf)> {
    let csi = rig.csi()?;
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    Ok((csi, rig.target("a")))
}

fn only_mount(target: &Path) -> Result<mounts::Mount> {
    let mut found = mounts::at(target)?;
    ensure!(found.len() == 1, "{} mounts at {}: {found:?}", found.len(), target.display());
    found.pop().context("no mount")
}

fn publish_makes_the_target_and_binds_the_volume(rig: &mut Rig) -> Result<()> {
    let (_, target) = &volume(rig)?;
    ensure!(!target.exists());
    rig.csi()?.node_publish_volume(publish("vol-a", target, mount()))?;
    let mounted = only_mount(target)?;
    ensure!(mounted.root == Path::new("/vol-a/data") && mounted.device == rig.pool().device()?, "{mounted:?}");
    ensure!(mounted.has("rw") && mounted.has("nosuid") && mounted.has("nodev"), "{mounted:?}");
    let status = target.metadata()?;
    ensure!(status.mode() & 0o7777 == 0o755 && status.uid() == 0, "{:o}", status.mode());
    fs::write(target.join("file"), "content")?;
    ensure!(fs::read(rig.pool().volume("vol-a").join("data/file"))? == b"content");
    Ok(())
}

fn publish_again_makes_no_second_mount(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.node_publish_volume(publish("vol-a", target, mount()))?;
    let first = only_mount(target)?;
    for _ in 0..4 {
        csi.node_publish_volume(publish("vol-a", target, mount()))?;
    }
    ensure!(only_mount(target)? == first);
    Ok(())
}

fn publish_again_after_restarts_leaves_the_live_mount_alone(rig: &mut Rig) -> Result<()> {
    let (_, target) = &volume(rig)?;
    rig.csi()?.node_publish_volume(publish("vol-a", target, mount()))?;
    let first = only_mount(target)?;
    let open = fs::File::create(target.join("open"))?;
    rig.restart()?;
    rig.csi()?.node_publish_volume(publish("vol-a", target, mount()))?;
    ensure!(only_mount(target)? == first);
    open.sync_all()?;
    Ok(())
}

fn the_same_target_in_another_way_already_exists(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.node_publish_volume(publish("vol-a", target, mount()))?;
    let before = only_mount(target)?;
    for request in [
        publish_read_only("vol-a", target, mount()),
        publish("vol-a", target, mount_with_flags(&["noexec"])),
        publish("vol-a", target, mount_in(Mode::MultiNodeReaderOnly)),
    ] {
        refused(csi.node_publish_volume(request), Code::AlreadyExists, "vol-a")?;
    }
    ensure!(only_mount(target)? == before);
    // The same holds for a helper that only found the mount.
    rig.restart_helper()?;
    let again = rig.csi()?.node_publish_volume(publish_read_only("vol-a", target, mount()));
    refused(again, Code::AlreadyExists, "vol-a")
}

fn the_same_target_for_another_volume_already_exists(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.create_volume(create("vol-b", SIZE, mount()))?;
    csi.node_publish_volume(publish("vol-a", target, mount()))?;
    let before = only_mount(target)?;
    refused(csi.node_publish_volume(publish("vol-b", target, mount())), Code::AlreadyExists, "vol-a")?;
    refused(csi.node_unpublish_volume(unpublish("vol-b", target)), Code::FailedPrecondition, "vol-a")?;
    ensure!(only_mount(target)? == before);
    Ok(())
}

fn one_writer_means_one_target(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    let other = rig.target("b");
    for mode in [Mode::SingleNodeWriter, Mode::SingleNodeSingleWriter] {
        csi.node_publish_volume(publish("vol-a", target, mount_in(mode)))?;
        csi.node_publish_volume(publish("vol-a", target, mount_in(mode)))?;
        let second = csi.node_publish_volume(publish("vol-a", &other, mount_in(mode)));
        refused(second, Code::FailedPrecondition, "vol-a")?;
        ensure!(!other.exists());
        csi.node_unpublish_volume(unpublish("vol-a", target))?;
    }
    Ok(())
}

fn many_pods_of_a_node_share_a_volume(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    let others = [rig.target("b"), rig.target("c")];
    csi.node_publish_volume(publish("vol-a", target, mount()))?;
    csi.node_publish_volume(publish("vol-a", &others[0], mount()))?;
    csi.node_publish_volume(publish_read_only("vol-a", &others[1], mount()))?;
    fs::write(target.join("file"), "content")?;
    for other in &others {
        ensure!(fs::read(other.join("file"))? == b"content");
    }
    csi.node_unpublish_volume(unpublish("vol-a", target))?;
    ensure!(fs::read(others[0].join("file"))? == b"content");
    Ok(())
}

fn readers_cannot_write(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    for request in [
        publish_read_only("vol-a", target, mount()),
        publish("vol-a", target, mount_with_flags(&["ro"])),
        publish("vol-a", target, mount_in(Mode::MultiNodeReaderOnly)),
        publish("vol-a", target, mount_in(Mode::SingleNodeReaderOnly)),
    ] {
        csi.node_publish_volume(request)?;
        ensure!(only_mount(target)?.has("ro"), "{:?}", only_mount(target)?);
        let error = fs::write(target.join("file"), "content").err().context("a reader has written")?;
        ensure!(error.kind() == ErrorKind::ReadOnlyFilesystem, "{error}");
        csi.node_unpublish_volume(unpublish("vol-a", target))?;
    }
    Ok(())
}

fn mount_flags_are_on(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    for (flags, on, off) in [
        (vec!["noexec"], vec!["noexec", "relatime"], vec!["ro"]),
        (vec!["noatime"], vec!["noatime"], vec!["noexec", "relatime"]),
        (vec!["nodiratime"], vec!["nodiratime"], vec!["noatime"]),
        (vec!["nosuid", "nodev", "relatime"], vec!["relatime"], vec!["noexec", "noatime"]),
        (vec!["ro", "noexec", "noatime"], vec!["ro", "noexec", "noatime"], vec!["rw"]),
    ] {
        csi.node_publish_volume(publish("vol-a", target, mount_with_flags(&flags)))?;
        let mounted = only_mount(target)?;
        for option in on.into_iter().chain(["nosuid", "nodev"]) {
            ensure!(mounted.has(option), "{flags:?}: {option} is not on: {mounted:?}");
        }
        for option in off {
            ensure!(!mounted.has(option), "{flags:?}: {option} is on: {mounted:?}");
        }
        csi.node_unpublish_volume(unpublish("vol-a", target))?;
    }
    Ok(())
}

fn unknown_mount_flags_are_refused_with_the_list(rig: &mut Rig) -> Result<()> {
    let (_, target) = &volume(rig)?;
    for flag in ["suid", "dev", "bind", "discard", "", "ro,rw", "subvol=/"] {
        let answer = rig.csi()?.node_publish_volume(publish("vol-a", target, mount_with_flags(&[flag])));
        refused(answer, Code::InvalidArgument, "ro, noexec, nosuid, nodev, noatime, nodiratime, relatime")?;
        ensure!(!target.exists());
    }
    let long = "x".repeat(5000);
    let answer = rig.csi()?.node_publish_volume(publish("vol-a", target, mount_with_flags(&[&long])));
    refused(answer, Code::InvalidArgument, "mount_flags")
}

fn filesystem_is_empty_or_a_pools_own(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    for filesystem in ["", rig.run_options.pool_fs.name()] {
        csi.node_publish_volume(publish("vol-a", target, mount_with_filesystem(filesystem)))?;
        csi.node_unpublish_volume(unpublish("vol-a", target))?;
    }
    let answer = csi.node_publish_volume(publish("vol-a", target, mount_with_filesystem("btrfs")));
    refused(answer, Code::FailedPrecondition, "btrfs")
}

fn an_unknown_volume_is_not_found(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let target = rig.target("a");
    for id in ["vol-z", "No Id", "../default", "."] {
        refused(csi.node_publish_volume(publish(id, &target, mount())), Code::NotFound, "volume")?;
        ensure!(!target.exists());
        csi.node_unpublish_volume(unpublish(id, &target))?;
    }
    // The id is checked before the path.
    refused(csi.node_publish_volume(publish("vol-z", Path::new("/etc/x"), mount())), Code::NotFound, "vol-z")?;
    csi.node_unpublish_volume(unpublish("vol-z", Path::new("/etc/x")))?;
    Ok(())
}

fn the_other_kind_is_refused(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.create_volume(create("vol-b", SIZE, block()))?;
    refused(csi.node_publish_volume(publish("vol-a", target, block())), Code::FailedPrecondition, "vol-a")?;
    refused(csi.node_publish_volume(publish("vol-b", target, mount())), Code::FailedPrecondition, "vol-b")?;
    ensure!(!target.exists());
    Ok(())
}

fn missing_fields_are_refused(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    let good = publish("vol-a", target, mount());
    let capability = |capability| NodePublishVolumeRequest { volume_capability: capability, ..good.clone() };
    for (request, part) in [
        (NodePublishVolumeRequest::default(), "volume_id"),
        (publish("", target, mount()), "volume_id"),
        (publish("vol-a", Path::new(""), mount()), "target_path"),
        (capability(None), "volume_capability"),
        (capability(Some(VolumeCapability::default())), "access_type"),
        (capability(Some(VolumeCapability { access_mode: None, ..mount() })), "access_mode"),
        (capability(Some(VolumeCapability { access_type: None, ..mount() })), "access_type"),
        (capability(Some(mount_in(Mode::Unknown))), "access_mode"),
    ] {
        refused(csi.node_publish_volume(request), Code::InvalidArgument, part)?;
    }
    for (request, part) in [
        (NodeUnpublishVolumeRequest::default(), "volume_id"),
        (unpublish("", target), "volume_id"),
        (unpublish("vol-a", Path::new("")), "target_path"),
    ] {
        refused(csi.node_unpublish_volume(request), Code::InvalidArgument, part)?;
    }
    Ok(())
}

fn long_target_paths_are_accepted(rig: &mut Rig) -> Result<()> {
    rig.csi()?.create_volume(create("vol-a", SIZE, mount()))?;
    let csi = rig.csi()?;
    for number in [1, 4, 12] {
        let parent = (0..number).fold(rig.publish_directory(), |path, _| path.join("d".repeat(250)));
        fs::create_dir_all(&parent)?;
        let target = parent.join("t".repeat(255));
        csi.node_publish_volume(publish("vol-a", &target, mount()))?;
        only_mount(&target)?;
        csi.node_get_volume_stats(stats("vol-a", &target))?;
        csi.node_unpublish_volume(unpublish("vol-a", &target))?;
        ensure!(!target.exists());
        fs::remove_dir_all(rig.publish_directory().join("d".repeat(250)))?;
    }
    Ok(())
}

fn data_outlives_publishing(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    csi.node_publish_volume(publish("vol-a", target, mount()))?;
    fs::write(target.join("file"), "content")?;
    std::os::unix::fs::chown(target, Some(1000), Some(2000))?;
    csi.node_unpublish_volume(unpublish("vol-a", target))?;
    ensure!(!target.exists());
    let other = rig.target("b");
    csi.node_publish_volume(publish("vol-a", &other, mount()))?;
    ensure!(fs::read(other.join("file"))? == b"content");
    ensure!((other.metadata()?.uid(), other.metadata()?.gid()) == (1000, 2000));
    Ok(())
}

fn an_empty_target_that_is_there_is_used(rig: &mut Rig) -> Result<()> {
    let (_, target) = &volume(rig)?;
    fs::create_dir(target)?;
    rig.csi()?.node_publish_volume(publish("vol-a", target, mount()))?;
    only_mount(target).map(drop)
}

fn mounts_made_in_one_target_are_in_no_other(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &volume(rig)?;
    let other = rig.target("b");
    csi.node_publish_volume(publish("vol-a", target, mount()))?;
    csi.node_publish_volume(publish("vol-a", &other, mount()))?;
    fs::create_dir(target.join("inner"))?;
    rustix::mount::mount_bind(rig.logs(), target.join("inner"))?;
    ensure!(mounts::at(&other.join("inner"))?.is_empty());
    ensure!(mounts::below(&rig.pool().directory)?.is_empty());
    rustix::mount::unmount(target.join("inner"), rustix::mount::UnmountFlags::NOFOLLOW)?;
    Ok(())
}
