//! Snapshots and copies through CSI and `bulkheadctl`, with the real processes.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::commands::Printed;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::controller_service_capability::{Type, rpc};
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::documented::{SNAPSHOTS, blocks};
use bulkhead_tests::expect::refused;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, program};
use tonic::Code;

use super::filesystems::make_pool;

cases! {
    a_pool_says_whether_it_can_copy: Filesystem,
    a_block_volume_is_as_it_was: Xfs,
    files_are_as_they_were: Bare + Xfs,
    several_volumes_are_of_one_moment: Bare + Xfs,
    what_is_no_copy_of_this_is_refused: Xfs,
    directories_are_refused_with_the_way: Xfs,
    what_has_changed_is_told: Xfs,
    what_the_page_says_works: Xfs,
}

const SIZE: i64 = 16 * MIB;

/// Of a filesystem in an image.
const IMAGE: i64 = 300 * MIB;

fn a_pool_says_whether_it_can_copy(rig: &mut Rig) -> Result<()> {
    let answer = rig.csi()?.controller_get_capabilities(ControllerGetCapabilitiesRequest {})?;
    let offered = |wanted: rpc::Type| {
        let is_it =
            |one: &ControllerServiceCapability| matches!(&one.r#type, Some(Type::Rpc(rpc)) if rpc.r#type() == wanted);
        answer.capabilities.iter().any(is_it)
    };
    let can = rig.run_options.pool_fs == PoolFilesystem::Xfs;
    for copying in
        [rpc::Type::CreateDeleteSnapshot, rpc::Type::ListSnapshots, rpc::Type::GetSnapshot, rpc::Type::CloneVolume]
    {
        ensure!(offered(copying) == can, "{copying:?} on {}", rig.run_options.pool_fs.name());
    }
    ensure!(offered(rpc::Type::CreateDeleteVolume));
    if !can {
        let csi = rig.csi()?;
        csi.create_volume(create("vol-a", SIZE, block()))?;
        refused(csi.create_snapshot(take("snap-1", "vol-a")), Code::InvalidArgument, "XFS with reflink")?;
    }
    Ok(())
}

/// Writes to the device of a volume, and has it on disk.
fn write(device: &Path, text: &str, offset: u64) -> Result<()> {
    let file = File::options().write(true).open(device)?;
    file.write_all_at(text.as_bytes(), offset)?;
    file.sync_all().context("sync a device")
}

fn read(device: &Path, length: usize, offset: u64) -> Result<String> {
    let mut bytes = vec![0; length];
    File::open(device)?.read_exact_at(&mut bytes, offset)?;
    Ok(String::from_utf8(bytes)?)
}

fn a_block_volume_is_as_it_was(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let publish_at = |id: &str| csi.node_publish_volume(publish(id, &rig.target(id), block()));
    csi.create_volume(create("vol-a", SIZE, block()))?;
    publish_at("vol-a")?;
    write(&rig.target("vol-a"), "monday", 4096)?;
    let snapshot = csi.create_snapshot(take("snap-1", "vol-a"))?.snapshot.context("a snapshot")?;
    ensure!(
        snapshot.size_bytes == SIZE && snapshot.source_volume_id == "vol-a" && snapshot.ready_to_use,
        "{snapshot:?}"
    );
    ensure!(csi.create_snapshot(take("snap-1", "vol-a"))?.snapshot.as_ref() == Some(&snapshot), "another one");
    write(&rig.target("vol-a"), "tuesday", 4096)?;
    for (request, text) in [
        (restore("vol-b", "snap-1", block()), "monday"),
        (clone("vol-c", "vol-a", block()), "tuesday"),
        (CreateVolumeRequest { capacity_range: at_least(2 * SIZE), ..restore("vol-d", "snap-1", block()) }, "monday"),
    ] {
        let (id, source) = (request.name.clone(), request.volume_content_source.clone());
        let volume = csi.create_volume(request.clone())?.volume.context("a volume")?;
        ensure!(volume.content_source == source, "{volume:?}");
        ensure!(csi.create_volume(request)?.volume == Some(volume), "{id} is made again");
        publish_at(&id)?;
        let found = read(&rig.target(&id), text.len(), 4096)?;
        ensure!(found == text, "{id} holds {found:?}");
    }
    let listed = csi.list_volumes(ListVolumesRequest::default())?.entries.len();
    ensure!(listed == 4, "{listed} volumes, so that a snapshot is among them");
    rig.restart_helper()?;
    let csi = rig.csi()?;
    let list = csi.list_snapshots(ListSnapshotsRequest::default())?;
    ensure!(list.entries.iter().map(|entry| &entry.snapshot).eq([&Some(snapshot)]), "{list:?}");
    csi.delete_snapshot(drop_snapshot("snap-1"))?;
    csi.delete_snapshot(drop_snapshot("snap-1"))?;
    Ok(())
}

fn files_are_as_they_were(rig: &mut Rig) -> Result<()> {
    make_pool(rig, 4)?;
    let csi = rig.started_csi()?;
    let publish_at = |id: &str| csi.node_publish_volume(publish(id, &rig.target(id), mount()));
    csi.create_volume(image_of(create("vol-a", IMAGE, mount())))?;
    publish_at("vol-a")?;
    let file = rig.target("vol-a").join("file");
    fs::write(&file, "monday")?;
    csi.create_snapshot(take("snap-1", "vol-a"))?;
    fs::write(&file, "tuesday")?;
    let larger = at_least(2 * IMAGE);
    csi.create_volume(image_of(CreateVolumeRequest { capacity_range: larger, ..restore("vol-b", "snap-1", mount()) }))?;
    csi.create_volume(image_of(clone("vol-c", "vol-a", mount())))?;
    for (id, text) in [("vol-b", "monday"), ("vol-c", "tuesday")] {
        publish_at(id)?;
        let found = fs::read_to_string(rig.target(id).join("file"))?;
        ensure!(found == text, "{id} holds {found:?}");
    }
    let inside = rustix::fs::statvfs(rig.target("vol-b"))?;
    let size = inside.f_blocks * inside.f_frsize;
    ensure!(size > 500 << 20, "the restored filesystem has not grown: {size}");
    // What is restored outlives the snapshot, also while it is in use.
    csi.delete_snapshot(drop_snapshot("snap-1"))?;
    ensure!(fs::read_to_string(rig.target("vol-b").join("file"))? == "monday");
    Ok(())
}

fn together(name: &str, volumes: &[&str]) -> CreateVolumeGroupSnapshotRequest {
    CreateVolumeGroupSnapshotRequest {
        name: name.to_owned(),
        source_volume_ids: volumes.iter().map(|id| (*id).to_owned()).collect(),
        ..CreateVolumeGroupSnapshotRequest::default()
    }
}

fn several_volumes_are_of_one_moment(rig: &mut Rig) -> Result<()> {
    make_pool(rig, 4)?;
    let csi = rig.started_csi()?;
    for id in ["vol-a", "vol-b"] {
        csi.create_volume(image_of(create(id, IMAGE, mount())))?;
        csi.node_publish_volume(publish(id, &rig.target(id), mount()))?;
        fs::write(rig.target(id).join("file"), id)?;
    }
    csi.create_volume(create("vol-c", SIZE, block()))?;
    let all = together("group-1", &["vol-a", "vol-b", "vol-c"]);
    let group = csi.create_volume_group_snapshot(all.clone())?.group_snapshot.context("a group")?;
    ensure!(group.group_snapshot_id == "group-1" && group.ready_to_use && group.snapshots.len() == 3, "{group:?}");
    let is_of_it = |one: &Snapshot| one.group_snapshot_id == "group-1" && one.creation_time == group.creation_time;
    ensure!(group.snapshots.iter().all(is_of_it), "{group:?}");
    ensure!(csi.create_volume_group_snapshot(all)?.group_snapshot.as_ref() == Some(&group), "another one");
    let ids: Vec<String> = group.snapshots.iter().map(|one| one.snapshot_id.clone()).collect();
    let get = |id: &str, ids: &[String]| GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: ids.to_vec(),
        ..GetVolumeGroupSnapshotRequest::default()
    };
    ensure!(csi.get_volume_group_snapshot(get("group-1", &ids))?.group_snapshot.as_ref() == Some(&group));
    refused(csi.get_volume_group_snapshot(get("group-1", &ids[1..])), Code::InvalidArgument, "snapshot_ids")?;
    refused(csi.get_volume_group_snapshot(get("group-2", &[])), Code::NotFound, "group-2")?;
    for (request, code, why) in [
        (together("group-1", &["vol-a"]), Code::AlreadyExists, "as well"),
        (together("group-2", &["vol-a", "vol-x"]), Code::FailedPrecondition, "several nodes"),
        (together("group-2", &["vol-x"]), Code::NotFound, "vol-x"),
        (together("group-2", &[]), Code::InvalidArgument, "source_volume_ids"),
    ] {
        refused(csi.create_volume_group_snapshot(request), code, why)?;
    }
    let of_first = group.snapshots.iter().find(|one| one.source_volume_id == "vol-a").context("that of vol-a")?;
    csi.create_volume(image_of(restore("vol-d", &of_first.snapshot_id, mount())))?;
    csi.node_publish_volume(publish("vol-d", &rig.target("vol-d"), mount()))?;
    ensure!(fs::read_to_string(rig.target("vol-d").join("file"))? == "vol-a");
    let drop = |ids: &[String]| DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: "group-1".to_owned(),
        snapshot_ids: ids.to_vec(),
        ..DeleteVolumeGroupSnapshotRequest::default()
    };
    refused(csi.delete_volume_group_snapshot(drop(&ids[..1])), Code::InvalidArgument, "snapshot_ids")?;
    csi.delete_volume_group_snapshot(drop(&ids))?;
    csi.delete_volume_group_snapshot(drop(&ids))?;
    ensure!(csi.list_snapshots(ListSnapshotsRequest::default())?.entries.is_empty(), "a snapshot is left");
    Ok(())
}

/// The same volume with a filesystem in an image.
fn image_of(request: CreateVolumeRequest) -> CreateVolumeRequest {
    CreateVolumeRequest { parameters: parameters(&[("backing", "image"), ("sparse", "true")]), ..request }
}

fn what_is_no_copy_of_this_is_refused(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for id in ["vol-a", "vol-b"] {
        csi.create_volume(create(id, SIZE, block()))?;
    }
    csi.create_snapshot(take("snap-1", "vol-a"))?;
    csi.create_volume(restore("vol-c", "snap-1", block()))?;
    refused(csi.create_snapshot(take("snap-1", "vol-b")), Code::AlreadyExists, "snap-1")?;
    refused(csi.create_snapshot(take("vol-b", "vol-a")), Code::AlreadyExists, "vol-b")?;
    refused(csi.create_snapshot(take("snap-2", "vol-x")), Code::NotFound, "vol-x")?;
    refused(csi.create_snapshot(take("snap-2", "snap-1")), Code::InvalidArgument, "snap-1")?;
    refused(csi.create_volume(clone("vol-c", "vol-a", block())), Code::AlreadyExists, "vol-c")?;
    refused(csi.create_volume(create("vol-c", SIZE, block())), Code::AlreadyExists, "vol-c")?;
    refused(csi.create_volume(create("snap-1", SIZE, block())), Code::AlreadyExists, "snap-1")?;
    refused(csi.create_volume(clone("vol-b", "vol-a", block())), Code::AlreadyExists, "vol-b")?;
    refused(csi.create_volume(restore("vol-d", "snap-1", mount())), Code::InvalidArgument, "block volume")?;
    refused(csi.create_volume(restore("vol-d", "snap-x", block())), Code::NotFound, "snap-x")?;
    let smaller = CreateVolumeRequest { capacity_range: at_least(SIZE / 2), ..restore("vol-d", "snap-1", block()) };
    refused(csi.create_volume(smaller), Code::OutOfRange, "source")?;
    refused(csi.delete_volume(delete("snap-1")), Code::InvalidArgument, "snap-1")?;
    refused(csi.delete_snapshot(drop_snapshot("vol-a")), Code::InvalidArgument, "vol-a")?;
    let target = rig.target("snap-1");
    ensure!(csi.node_publish_volume(publish("snap-1", &target, block())).is_err(), "a snapshot is published");
    ensure!(csi.controller_expand_volume(controller_expand("snap-1", 2 * SIZE)).is_err(), "a snapshot is grown");
    // A copy is found again after its source is gone.
    csi.delete_snapshot(drop_snapshot("snap-1"))?;
    csi.create_volume(restore("vol-c", "snap-1", block()))?;
    Ok(())
}

fn directories_are_refused_with_the_way(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    refused(csi.create_snapshot(take("snap-1", "vol-a")), Code::InvalidArgument, "backing: image")?;
    refused(csi.create_volume(clone("vol-b", "vol-a", mount())), Code::InvalidArgument, "backing: image")
}

fn what_has_changed_is_told(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    csi.create_volume(create("vol-a", SIZE, block()))?;
    let device = rig.target("vol-a");
    csi.node_publish_volume(publish("vol-a", &device, block()))?;
    // More ranges than one reply of the helper holds.
    let written: Vec<u64> = (0..300).map(|number| number * 3 * 4096).collect();
    for offset in &written {
        write(&device, "first", *offset)?;
    }
    csi.create_snapshot(take("snap-1", "vol-a"))?;
    for offset in written.iter().take(250) {
        write(&device, "second", *offset)?;
    }
    csi.create_snapshot(take("snap-2", "vol-a"))?;
    let as_told = |ranges: Vec<BlockMetadata>| -> Vec<(i64, i64)> {
        ranges.iter().map(|range| (range.byte_offset, range.size_bytes)).collect()
    };
    let expected: Vec<_> = written.iter().map(|offset| (i64::try_from(*offset).unwrap_or(-1), 4096)).collect();
    ensure!(as_told(csi.ranges(None, "snap-1")?) == expected, "what holds data is told otherwise");
    ensure!(as_told(csi.ranges(Some("snap-1"), "snap-2")?) == expected[..250], "what differs is told otherwise");
    csi.create_volume(create("vol-b", SIZE, block()))?;
    csi.create_snapshot(take("snap-3", "vol-b"))?;
    refused(csi.ranges(Some("snap-1"), "snap-3"), Code::InvalidArgument, "nothing in common")?;
    refused(csi.ranges(None, "vol-a"), Code::NotFound, "vol-a")?;
    Ok(())
}

/// The page's commands in their order; what is written between them is in the backup that they make.
fn what_the_page_says_works(rig: &mut Rig) -> Result<()> {
    let backup = rig.work().join("backup");
    fs::create_dir(&backup)?;
    let tools = program("bulkheadctl")?;
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", tools.parent().context("a directory")?.display());
    let csi = rig.csi()?;
    let device = rig.target("data");
    for (number, block_of_page) in blocks(SNAPSHOTS, "sh").into_iter().enumerate() {
        let commands = block_of_page
            .replace("/run/bulkhead/volumes", &rig.publish_directory().display().to_string())
            .replace("/srv/backup", &backup.display().to_string());
        let commands = format!("set -e\n{commands}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &commands]).env("PATH", &path).env("BULKHEAD_ENDPOINT", rig.kubelet.csi_socket());
        let printed = Printed::by(&mut shell)?.succeeded().with_context(|| commands.clone())?;
        if number == 0 {
            Printed::row(&printed, &["monday", "default", "block", "64 MiB"])?;
            csi.node_publish_volume(publish("data", &device, block()))?;
            write(&device, "tuesday", 12 << 20)?;
        }
        if block_of_page.contains("snapshot together") {
            Printed::row(&printed, &["evening.of-"])?;
        }
        if block_of_page.contains("snapshot restore monday data-monday") {
            Printed::row(&printed, &["source:", "monday"])?;
        }
        // What was written, and what `data-copy` has, too.
        if block_of_page.contains("volume show data\n") {
            Printed::row(&printed, &["shared:", "4 KiB"])?;
        }
    }
    let image = backup.join("data.img");
    ensure!(read(&image, 7, 12 << 20)? == "tuesday", "the backup lacks what has changed");
    ensure!(fs::read(&image)? == fs::read(&device)?, "the backup is not as the volume");
    csi.node_unpublish_volume(unpublish("data", &device))?;
    for id in ["data", "data-monday", "data-copy", "log", "index"] {
        csi.delete_volume(delete(id))?;
    }
    Ok(())
}
