//! Filesystems that are not one pool's alone: what is promised there, and how far copies reach.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, PoolName, Reply, Request, Response};
use bulkhead_tests::cases;
use bulkhead_tests::expect::{denied, no_room};
use bulkhead_tests::helper::*;
use bulkhead_tests::pool::{Pool, format_image, mount_image, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;

use super::promises::{rest, rewrite_in_pieces};
use super::{check_filled, end, fill, gone, publish, take};

cases! {
    two_pools_on_one_filesystem_promise_its_room_once: Bare + Xfs,
    copies_beside_files_of_others_keep_their_promises: Bare + Xfs + Slow,
}

const MIB: u64 = 1 << 20;
const SIZE: u64 = 32 * MIB;

/// A filesystem that is mounted, and nothing in it.
fn disk(rig: &Rig) -> Result<PathBuf> {
    let directory = rig.work().join("pools/disk");
    let disk = directory.with_extension("disk");
    std::fs::create_dir_all(&directory)?;
    format_image(&rig.run_options, rig.templates(), &disk)?;
    mount_image(&rig.run_options, &disk, &directory)?;
    Ok(directory)
}

fn add_pool_below(rig: &mut Rig, disk: &std::path::Path, name: &str) -> Result<()> {
    let directory = disk.join(name);
    std::fs::create_dir(&directory)?;
    run(std::process::Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&directory))?;
    rig.pools.push(Pool::mounted(&rig.run_options, &directory, name));
    Ok(())
}

fn create_in(pool: &PoolName, id: &str, size: u64) -> Request {
    Request::Create { volume: volume(id), pool: pool.clone(), spec: image_spec(size) }
}

fn two_pools_on_one_filesystem_promise_its_room_once(rig: &mut Rig) -> Result<()> {
    let disk = disk(rig)?;
    for name in ["default", "other"] {
        add_pool_below(rig, &disk, name)?;
    }
    rig.pools[0].options.push_str(",extents=20");
    let helper = rig.started_helper()?;
    let [default, other]: [PoolName; 2] = ["default".parse()?, "other".parse()?];
    let promised = |helper: &HelperClient| -> Result<u64> {
        let found = [helper.pool_status("default")?, helper.pool_status("other")?];
        ensure!(found[0].promised == found[1].promised, "{found:?}");
        Ok(found[0].promised)
    };
    for (pool, id) in [(&default, "vol-a"), (&other, "vol-b")] {
        helper.ask(&create_in(pool, id, SIZE))?;
        publish(&helper, id)?;
        fill(&rig.target(id), 1, 0, SIZE)?;
    }
    let before = promised(&helper)?;
    let taken = [take(&helper, "vol-a", "snap-a")?, take(&helper, "vol-b", "snap-b")?];
    ensure!(taken[0].pool == default && taken[1].pool == other, "{taken:?}");
    let wanted: u64 = taken.iter().map(|one| one.allocated + one.allocated / 100).sum();
    ensure!(
        promised(&helper)? > before + wanted,
        "{} after {before}, and {wanted} for two snapshots",
        promised(&helper)?
    );
    // Their blocks could be shared, but each pool may be taken away on its own.
    let across = |source: &str, pool: &PoolName| Request::CreateFrom {
        volume: volume("vol-c"),
        pool: pool.clone(),
        spec: image_spec(SIZE),
        source: volume(source),
    };
    for (source, pool) in [("vol-a", &other), ("snap-a", &other), ("vol-b", &default), ("snap-b", &default)] {
        denied(helper.request(&across(source, pool))?, ErrorKind::Invalid, "so are its copies")?;
    }
    // What one pool promises, the other cannot.
    let rest = rest(&helper)?;
    helper.ask(&create_in(&other, "vol-z", rest))?;
    for request in
        [create_in(&default, "vol-y", 8 * MIB), create_in(&other, "vol-y", 8 * MIB), across("snap-a", &default)]
    {
        no_room(helper.request(&request)?)?;
    }
    no_room(helper.request(&create_snapshot("vol-a", "snap-c"))?)?;
    for byte in [2, 3] {
        for id in ["vol-a", "vol-b"] {
            rewrite_in_pieces(rig, id, SIZE, byte)?;
        }
    }
    for (pool, id) in rig.pools.iter().zip(["snap-a", "snap-b"]) {
        check_filled(&pool.image(id), 1, 0, SIZE)?;
    }
    helper.ask(&delete("vol-z"))?;
    gone(rig)?;
    // Where no project counts what is shared, what has come apart is taken for others' files.
    rig.eventually(20, || {
        ensure!(super::promises::rest(&helper)? > 3 * SIZE, "{:?}", helper.pool_status("other")?);
        Ok(())
    })?;
    // Each pool has its own limit.
    let response: Response = helper.request(&create_snapshot("vol-a", "snap-c"))?;
    let Err(error) = response else { bail!("{response:?}") };
    ensure!(matches!(error.kind, ErrorKind::TooFragmented { limit: 20, .. }), "{error:?}");
    take(&helper, "vol-b", "snap-c")?;
    for id in ["vol-a", "vol-b"] {
        end(&helper, id)?;
    }
    helper.ask_all(["snap-a", "snap-b", "snap-c"].map(delete_snapshot))?;
    gone(rig)?;
    ensure!(promised(&helper)? == 0, "{} bytes stay promised", promised(&helper)?);
    stop(rig, &disk)
}

/// Stops the helper, so that the disk can be unmounted, and starts another with a pool of the usual kind.
fn stop(rig: &mut Rig, disk: &std::path::Path) -> Result<()> {
    rig.stop_helper()?;
    rig.pools.clear();
    rig.eventually(10, || bulkhead_tests::observe::mounts::unmount_all(disk))?;
    rig.start_helper()
}

/// Nothing is enforced there, but what is promised is there as long as the others leave it alone.
fn copies_beside_files_of_others_keep_their_promises(rig: &mut Rig) -> Result<()> {
    let disk = disk(rig)?;
    let others = File::create(disk.join("file"))?;
    rustix::fs::fallocate(&others, rustix::fs::FallocateFlags::empty(), 0, 64 * MIB)?;
    let free = |disk: &std::path::Path| -> Result<u64> {
        let space = rustix::fs::statvfs(disk)?;
        Ok(space.f_bavail * space.f_frsize)
    };
    std::fs::create_dir(disk.join("default"))?;
    rig.pools = vec![Pool::plain(&disk.join("default"), "default")?];
    let helper = rig.started_helper()?;
    let empty = rest(&helper)?;
    ensure!(empty <= free(&disk)?, "{empty} bytes of {}", free(&disk)?);
    helper.ask(&create("vol-a", image_spec(SIZE)))?;
    publish(&helper, "vol-a")?;
    rewrite_in_pieces(rig, "vol-a", SIZE, 1)?;
    for id in ["snap-1", "snap-2"] {
        take(&helper, "vol-a", id)?;
    }
    for id in ["vol-b", "vol-c"] {
        helper.ask(&create_from(id, image_spec(SIZE), "snap-1"))?;
        publish(&helper, id)?;
    }
    // What the others take is not promised.
    let before = rest(&helper)?;
    rustix::fs::fallocate(&others, rustix::fs::FallocateFlags::empty(), 64 * MIB, 16 * MIB)?;
    let rest_now = rest(&helper)?;
    ensure!(rest_now + 16 * MIB <= before + MIB && before < empty - 4 * SIZE, "{before}, and then {rest_now}");
    helper.ask(&create("vol-z", image_spec(rest_now)))?;
    publish(&helper, "vol-z")?;
    no_room(helper.request(&create("vol-y", image_spec(8 * MIB)))?)?;
    for byte in [2, 3] {
        for (id, size) in [("vol-a", SIZE), ("vol-b", SIZE), ("vol-c", SIZE), ("vol-z", rest_now)] {
            rewrite_in_pieces(rig, id, size, byte)?;
        }
    }
    match helper.request(&Request::PoolCounts { pool: "default".parse()? })? {
        Ok(Reply::Counts { snapshots: 2, .. }) => {}
        other => bail!("{other:?}"),
    }
    for id in ["vol-a", "vol-b", "vol-c", "vol-z"] {
        end(&helper, id)?;
    }
    helper.ask_all(["snap-1", "snap-2"].map(delete_snapshot))?;
    gone(rig)?;
    // Nothing of it is left, once XFS has freed it: all that is missing are the others' files.
    rig.eventually(20, || {
        let after = rest(&helper)?;
        ensure!(after + 16 * MIB + 2 * MIB >= empty, "{empty} could be promised at first, and {after} in the end");
        Ok(())
    })?;
    drop(others);
    stop(rig, &disk)
}
