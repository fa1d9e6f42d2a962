//! Sizes are enforced: by the quota, by the image, and by what the pool has promised.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{Condition, ErrorKind as HelperError};
use bulkhead_tests::attacker::retag;
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;
use bulkhead_tests::csi::v1::*;
use bulkhead_tests::expect::{denied, no_room, refused};
use bulkhead_tests::helper::{self, create_in, directory_spec, image_spec};
use bulkhead_tests::observe::quotas;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use tonic::Code;

cases! {
    a_write_beyond_the_quota_fails: Quota,
    files_beyond_the_limit_on_inodes_fail: Quota,
    the_quota_grows_while_it_is_felt: Quota,
    the_quota_holds_after_restarts: Quota,
    statfs_in_the_volume_shows_its_own_size: Quota,
    neighbours_do_not_feel_each_other: Quota,
    more_than_the_pool_holds_is_exhausted: Quota,
    the_sum_of_promises_is_limited: Quota,
    overcommit_and_reserve_change_the_promise: Bare + Quota,
    an_image_that_does_not_fit_leaves_nothing: Quota + OwnPool,
    an_image_that_cannot_grow_keeps_its_size: Quota,
    a_full_pool_still_serves_and_deletes: Quota + OwnPool,
    a_preallocated_device_never_runs_out: Quota + OwnPool,
    a_changed_project_id_changes_nothing_for_the_volume: Quota,
    evasion_is_reported_as_a_condition: Quota,
    project_ids_come_from_the_configured_range: Bare + Quota,
    a_project_in_use_is_not_taken: Bare + Quota,
    two_pools_on_one_filesystem_share_its_room: Bare + Quota,
    an_operator_who_lowers_a_limit_is_corrected_at_the_next_start: Quota,
    a_disk_that_fills_up_during_an_allocation_leaves_nothing: Long + OwnPool + Filesystem,
}

const SIZE: i64 = 16 * MIB;

/// Writes mebibytes until no more can be written, and returns how many were.
fn fill(file: &Path, most: u64) -> Result<(u64, ErrorKind)> {
    let mut file = File::options().create(true).append(true).open(file)?;
    for written in 0..most {
        // Lack of space may not show until the data is written back.
        if let Err(error) = file.write_all(&[0x5a; 1 << 20]).and_then(|()| file.sync_data()) {
            return Ok((written, error.kind()));
        }
    }
    bail!("{most} MiB could be written")
}

/// Takes every block that is left.
fn fill_pool(path: &Path) -> Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let file = File::create(path)?;
    let mut end = 0;
    for step in [64 << 20, 4 << 20, 256 << 10, 4096] {
        while fallocate(&file, FallocateFlags::empty(), end, step).is_ok() {
            end += step;
        }
    }
    Ok(file.sync_all()?)
}

fn check_felt(kind: ErrorKind) -> Result<()> {
    ensure!(matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded), "failed with {kind:?}");
    Ok(())
}

fn a_write_beyond_the_quota_fails(rig: &mut Rig) -> Result<()> {
    let (_, target) = &rig.published(create("vol-a", SIZE, mount()))?;
    let (written, kind) = fill(&target.join("file"), 64)?;
    check_felt(kind)?;
    ensure!((14..=16).contains(&written), "{written} MiB were written");
    // Space freed by removing files can be used again.
    fs::remove_file(target.join("file"))?;
    rig.eventually(20, || Ok(fs::write(target.join("again"), vec![1; 8 << 20])?))
}

fn files_beyond_the_limit_on_inodes_fail(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let pairs = parameters(&[("inodes", "100")]);
    csi.create_volume(CreateVolumeRequest { parameters: pairs, ..create("vol-a", SIZE, mount()) })?;
    let target = rig.target("a");
    csi.node_publish_volume(publish("vol-a", &target, mount()))?;
    let mut made = 0;
    let kind = loop {
        match File::create(target.join(made.to_string())) {
            Ok(_) => made += 1,
            Err(error) => break error.kind(),
        }
        ensure!(made < 200, "{made} files could be made");
    };
    check_felt(kind)?;
    // The volume's top directory counts as one of its inodes.
    ensure!(made == 99, "{made} files could be made");
    let usage = csi.node_get_volume_stats(stats("vol-a", &target))?.usage;
    let inodes = usage.iter().find(|usage| usage.unit() == volume_usage::Unit::Inodes).context("no inodes")?;
    ensure!((inodes.total, inodes.used, inodes.available) == (100, 100, 0), "{inodes:?}");
    Ok(())
}

fn the_quota_grows_while_it_is_felt(rig: &mut Rig) -> Result<()> {
    let (_, target) = &rig.published(create("vol-a", SIZE, mount()))?;
    let (before, kind) = fill(&target.join("file"), 64)?;
    check_felt(kind)?;
    rig.csi()?.node_expand_volume(node_expand("vol-a", target, 2 * SIZE))?;
    let (more, kind) = fill(&target.join("more"), 64)?;
    check_felt(kind)?;
    ensure!((29..=32).contains(&(before + more)), "{before} and {more} MiB were written");
    Ok(())
}

fn the_quota_holds_after_restarts(rig: &mut Rig) -> Result<()> {
    let (_, target) = &rig.published(create("vol-a", SIZE, mount()))?;
    fs::write(target.join("first"), vec![1; 8 << 20])?;
    rig.restart()?;
    let (written, kind) = fill(&target.join("file"), 64)?;
    check_felt(kind)?;
    ensure!((6..=8).contains(&written), "{written} MiB were written");
    Ok(())
}

fn statfs_in_the_volume_shows_its_own_size(rig: &mut Rig) -> Result<()> {
    let (_, target) = &rig.published(create("vol-a", SIZE, mount()))?;
    let found = rustix::fs::statvfs(target)?;
    let size = found.f_blocks * found.f_frsize;
    ensure!(size == u64::try_from(SIZE)?, "{size} bytes");
    Ok(())
}

fn neighbours_do_not_feel_each_other(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &rig.published(create("vol-a", SIZE, mount()))?;
    csi.create_volume(create("vol-b", SIZE, mount()))?;
    let other = rig.target("b");
    csi.node_publish_volume(publish("vol-b", &other, mount()))?;
    fill(&target.join("file"), 64)?;
    fs::write(other.join("file"), vec![1; 12 << 20])?;
    File::open(other.join("file"))?.sync_all()?;
    Ok(())
}

fn more_than_the_pool_holds_is_exhausted(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    for capability in [mount(), block()] {
        refused(csi.create_volume(create("vol-a", 1 << 40, capability)), Code::ResourceExhausted, "default")?;
        rig.pool().holds(&[])?;
    }
    Ok(())
}

fn the_sum_of_promises_is_limited(rig: &mut Rig) -> Result<()> {
    let csi = rig.csi()?;
    let room = csi.get_capacity(GetCapacityRequest::default())?.available_capacity;
    let half = room / 2 / 4096 * 4096;
    csi.create_volume(create("vol-a", half, mount()))?;
    // Even though the first one uses nothing yet. A block volume has no inodes, and so somewhat more room.
    refused(csi.create_volume(create("vol-b", half + 4 * MIB, mount())), Code::ResourceExhausted, "room")?;
    refused(csi.create_volume(create("vol-b", half + room / 16, block())), Code::ResourceExhausted, "room")?;
    refused(csi.controller_expand_volume(controller_expand("vol-a", room + 4 * MIB)), Code::OutOfRange, "room")?;
    let left = csi.get_capacity(GetCapacityRequest::default())?;
    csi.create_volume(create("vol-b", left.maximum_volume_size.context("no maximum")? / 4096 * 4096, mount()))?;
    Ok(())
}

fn overcommit_and_reserve_change_the_promise(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    let available = |rig: &mut Rig, options: &str| -> Result<u64> {
        rig.pools[0].options = options.to_owned();
        rig.start_helper()?;
        let status = rig.helper()?.pool_status("default")?;
        rig.kill_helper()?;
        Ok(status.available)
    };
    let plain = available(rig, "")?;
    let close = |one: u64, other: u64| one.abs_diff(other) < 4 << 20;
    let double = available(rig, ",overcommit=2")?;
    ensure!(close(double, 2 * plain), "{plain} and {double}");
    let less = available(rig, ",reserve=104857600")?;
    ensure!(close(less, plain - (100 << 20)), "{plain} and {less}");
    rig.start_helper()
}

fn an_image_that_does_not_fit_leaves_nothing(rig: &mut Rig) -> Result<()> {
    // Something else fills the filesystem: the promise would still hold, but the blocks are missing.
    let csi = rig.csi()?;
    let room = csi.get_capacity(GetCapacityRequest::default())?.available_capacity;
    csi.create_volume(create("vol-a", room / 2, mount()))?;
    let file = rig.pool().directory.join("filler");
    let filler = File::create(&file)?;
    let most = u64::try_from(room)? * 3 / 4;
    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, most)?;
    refused(csi.create_volume(create("vol-b", room / 2 - 8 * MIB, block())), Code::ResourceExhausted, "room")?;
    rig.pool().holds(&["filler", "vol-a"])?;
    fs::remove_file(&file)?;
    drop(filler);
    Ok(())
}

fn an_image_that_cannot_grow_keeps_its_size(rig: &mut Rig) -> Result<()> {
    let (csi, target) = rig.published(create("vol-a", SIZE, block()))?;
    let image = rig.pool().image("vol-a");
    let before = fs::metadata(&image)?;
    for size in [1 << 34, 1 << 40] {
        refused(csi.node_expand_volume(node_expand("vol-a", &target, size)), Code::OutOfRange, "room")?;
        let after = fs::metadata(&image)?;
        ensure!((after.len(), after.blocks()) == (before.len(), before.blocks()), "{before:?} became {after:?}");
    }
    Ok(())
}

fn a_full_pool_still_serves_and_deletes(rig: &mut Rig) -> Result<()> {
    let (csi, target) = &rig.published(create("vol-a", SIZE, mount()))?;
    csi.create_volume(create("vol-b", SIZE, mount()))?;
    let file = rig.pool().directory.join("filler");
    // Until nothing at all is left, even for root.
    fill_pool(&file)?;
    refused(csi.create_volume(create("vol-c", SIZE, mount())), Code::ResourceExhausted, "")?;
    refused(csi.create_volume(create("vol-d", SIZE, block())), Code::ResourceExhausted, "")?;
    csi.node_publish_volume(publish("vol-b", &rig.target("b"), mount()))?;
    csi.node_get_volume_stats(stats("vol-a", target))?;
    csi.node_unpublish_volume(unpublish("vol-b", &rig.target("b")))?;
    csi.delete_volume(delete("vol-b"))?;
    rig.restart_helper()?;
    fs::remove_file(&file)?;
    Ok(())
}

fn a_preallocated_device_never_runs_out(rig: &mut Rig) -> Result<()> {
    let (_, target) = rig.published(create("vol-a", SIZE, block()))?;
    let file = rig.pool().directory.join("filler");
    fill_pool(&file)?;
    let mut device = File::options().write(true).open(&target)?;
    for _ in 0..16 {
        device.write_all(&[0x5a; 1 << 20])?;
    }
    device.sync_all()?;
    drop(device);
    fs::remove_file(&file)?;
    Ok(())
}

fn a_changed_project_id_changes_nothing_for_the_volume(rig: &mut Rig) -> Result<()> {
    let (_, target) = &rig.published(create("vol-a", SIZE, mount()))?;
    let before = quotas::blocks(&rig.pool().directory)?;
    let own = before.first().context("no project")?.project;
    retag(target, 0)?;
    retag(target, 114_711)?;
    rig.restart()?;
    // What the helper relies on is above what the pod can reach.
    let after = quotas::blocks(&rig.pool().directory)?;
    ensure!(after.iter().any(|quota| quota.project == own && quota.limit == 16 << 10), "{before:?} {after:?}");
    let csi = rig.csi()?;
    csi.node_expand_volume(node_expand("vol-a", target, 2 * SIZE))?;
    let after = quotas::blocks(&rig.pool().directory)?;
    ensure!(after.iter().any(|quota| quota.project == own && quota.limit == 32 << 10), "{after:?}");
    let total = csi.node_get_volume_stats(stats("vol-a", target))?.usage[0].total;
    ensure!(total == 2 * SIZE, "{total}");
    Ok(())
}

fn evasion_is_reported_as_a_condition(rig: &mut Rig) -> Result<()> {
    let (_, target) = &rig.published(create("vol-a", SIZE, mount()))?;
    fs::write(target.join("file"), vec![1; 4 << 20])?;
    File::open(target.join("file"))?.sync_all()?;
    retag(&target.join("file"), 114_711)?;
    // It scans the projects once a minute, and soon after it has started.
    let helper = rig.restarted_helper()?;
    rig.eventually(10, || {
        let status = helper.pool_status("default")?;
        let told = status
            .conditions
            .as_slice()
            .iter()
            .any(|condition| matches!(condition, Condition::QuotaEvasion { first: 114_711, .. }));
        ensure!(told, "{status:?}");
        Ok(())
    })
}

fn project_ids_come_from_the_configured_range(rig: &mut Rig) -> Result<()> {
    rig.helper_flags = vec!["--project-ids".to_owned(), "7000-7001".to_owned()];
    let csi = rig.started_csi()?;
    for id in ["vol-a", "vol-b"] {
        csi.create_volume(create(id, SIZE, mount()))?;
    }
    let projects: Vec<u32> = quotas::blocks(&rig.pool().directory)?.iter().map(|quota| quota.project).collect();
    ensure!(projects == [7000, 7001], "{projects:?}");
    refused(csi.create_volume(create("vol-c", SIZE, mount())), Code::ResourceExhausted, "project")?;
    csi.delete_volume(delete("vol-a"))?;
    // A project is available again once its volume has been emptied.
    rig.eventually(10, || Ok(csi.create_volume(create("vol-c", SIZE, mount()))?))?;
    Ok(())
}

fn a_project_in_use_is_not_taken(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    // Something else occupies the first ids of the range.
    let squat = rig.pool().directory.join("squat");
    fs::create_dir(&squat)?;
    retag(&squat, 7000)?;
    rig.helper_flags = vec!["--project-ids".to_owned(), "7000-7009".to_owned()];
    let csi = rig.started_csi()?;
    csi.create_volume(create("vol-a", SIZE, mount()))?;
    let limited: Vec<u32> = quotas::blocks(&rig.pool().directory)?
        .iter()
        .filter(|quota| quota.limit > 0)
        .map(|quota| quota.project)
        .collect();
    ensure!(matches!(limited[..], [7001..=7009]), "{limited:?}");
    fs::remove_dir(&squat)?;
    Ok(())
}

fn two_pools_on_one_filesystem_share_its_room(rig: &mut Rig) -> Result<()> {
    use bulkhead_tests::pool::Pool;
    use bulkhead_tests::run_options::program;
    let whole = rig.work().join("pools/whole");
    Pool::make_unmarked(&rig.run_options, rig.templates(), &whole, "whole")?;
    for name in ["default", "other"] {
        let directory = whole.join(name);
        fs::create_dir(&directory)?;
        run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&directory))?;
        rig.pools.push(Pool::existing(&directory, name));
    }
    rig.start()?;
    let helper = rig.helper()?;
    let available = |name: &str| -> Result<u64> { Ok(helper.pool_status(name)?.available) };
    let room = available("default")?;
    let half = room / 2 / 4096 * 4096;
    let in_pool = |id: &str, pool: &str, size| create_in(pool, id, directory_spec(size));
    helper.ask(&in_pool("vol-a", "default", half))?;
    let left = available("other")?;
    ensure!(left < room - half + (4 << 20), "{left} of {room}");
    no_room(helper.request(&in_pool("vol-b", "other", half + (8 << 20)))?)?;
    // An id belongs to one volume, whatever the pool.
    denied(helper.request(&in_pool("vol-a", "other", half))?, HelperError::AlreadyExists, "vol-a")?;
    helper.ask(&in_pool("vol-b", "other", 16 << 20))?;
    let projects = quotas::blocks(&whole)?;
    ensure!(projects.len() == 2, "{projects:?}");
    helper.ask_all(["vol-a", "vol-b"].map(helper::delete))?;
    no_room(helper.request(&in_pool("vol-z", "other", 1 << 40))?)?;
    helper.ask_all([helper::create("vol-c", image_spec(1 << 20)), helper::delete("vol-c")])?;
    // The pools are directories on one mount.
    rig.eventually(10, || {
        ensure!(quotas::blocks(&whole)?.is_empty());
        Ok(())
    })?;
    rig.stop()?;
    rig.pools.clear();
    bulkhead_tests::observe::mounts::unmount_all(&whole)
}

fn an_operator_who_lowers_a_limit_is_corrected_at_the_next_start(rig: &mut Rig) -> Result<()> {
    rig.published(create("vol-a", SIZE, mount()))?;
    let project = quotas::blocks(&rig.pool().directory)?.first().context("no project")?.project;
    let limit = format!("limit -p bhard=1m {project}");
    run(Command::new("xfs_quota").args(["-f", "-x", "-c", &limit]).arg(&rig.pool().directory))?;
    rig.restart_helper()?;
    let quota = quotas::blocks(&rig.pool().directory)?;
    ensure!(quota.first().is_some_and(|quota| quota.limit == 16 << 10), "{quota:?}");
    Ok(())
}

/// Something else takes and frees space while images are allocated: each image is created completely or not at all.
fn a_disk_that_fills_up_during_an_allocation_leaves_nothing(rig: &mut Rig) -> Result<()> {
    use std::sync::atomic::{AtomicBool, Ordering};
    let csi = rig.csi()?;
    let (file, done) = (rig.pool().directory.join("filler"), AtomicBool::new(false));
    let target = rig.target("a");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                // What cannot be taken here was taken by the allocation.
                let _ = fill_pool(&file);
                let _ = fs::remove_file(&file);
            }
        });
        let raced = (0..60).try_for_each(|round| -> Result<()> {
            let size = (1 + round % 4) * 48 * MIB;
            match csi.create_volume(create("vol-a", size, block())) {
                Ok(_) => {
                    csi.node_publish_volume(publish("vol-a", &target, block()))?;
                    let image = rig.pool().image("vol-a");
                    let before = fs::metadata(&image)?.len();
                    let grown = csi.node_expand_volume(node_expand("vol-a", &target, 2 * size));
                    let after = fs::metadata(&image)?.len();
                    ensure!(after == if grown.is_ok() { 2 * before } else { before }, "{before} became {after}");
                    if let Err(status) = grown {
                        refused::<()>(Err(status), Code::OutOfRange, "")?;
                    }
                    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
                    csi.delete_volume(delete("vol-a"))?;
                }
                refusal => refused(refusal, Code::ResourceExhausted, "")?,
            }
            Ok(())
        });
        done.store(true, Ordering::Relaxed);
        raced
    })?;
    if file.exists() {
        fs::remove_file(&file)?;
    }
    Ok(())
}
