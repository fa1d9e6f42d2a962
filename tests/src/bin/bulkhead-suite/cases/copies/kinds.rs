//! A copy is of the kind of its source, whatever is asked for: what a tenant can write as a device is never mounted.

use std::os::unix::fs::MetadataExt;

use anyhow::{Result, ensure};
use bulkhead_protocol::{BlockSize, ErrorKind, Inodes, Request, SnapshotOf, VolumeKind, VolumeSpec};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::pool::RECORD;
use bulkhead_tests::rig::Rig;

use super::take;
use crate::cases::filesystems::{SIZE, make_pool};

cases! {
    no_copy_is_of_another_kind_than_its_source: Bare + Xfs,
    a_snapshot_is_nothing_but_a_snapshot: Bare + Xfs,
    a_copy_stays_in_the_pool_of_its_source: Bare + Xfs,
    a_record_of_another_kind_is_not_served: Bare + Xfs,
    a_tenants_image_in_place_of_a_filesystems_is_not_copied: Bare + Xfs,
    an_older_client_neither_sees_snapshots_nor_makes_any: Bare + Xfs,
}

fn start(rig: &mut Rig) -> Result<HelperClient> {
    make_pool(rig, 4)?;
    let helper = rig.started_helper()?;
    for (id, spec) in
        [("vol-a", filesystem_spec(SIZE)), ("vol-b", image_spec(SIZE)), ("vol-c", directory_spec(1 << 20))]
    {
        helper.ask(&create(id, spec))?;
    }
    Ok(helper)
}

/// An image with blocks of 4096 bytes; an image that is a snapshot; and all kinds of snapshots, as settings.
fn with(size: u64, kind: VolumeKind) -> VolumeSpec {
    VolumeSpec { kind, ..image_spec(size) }
}

fn no_copy_is_of_another_kind_than_its_source(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    take(&helper, "vol-a", "snap-a")?;
    take(&helper, "vol-b", "snap-b")?;
    let directory = directory_spec(SIZE);
    let large_blocks = with(SIZE, VolumeKind::Image { sparse: false, block_size: BlockSize::B4096 });
    let snapshots = [SnapshotOf::Filesystem, SnapshotOf::Image { block_size: BlockSize::B512 }]
        .map(|of| with(SIZE, VolumeKind::Snapshot { of }));
    let filesystem = filesystem_spec(SIZE);
    for source in ["vol-b", "snap-b"] {
        for spec in [filesystem, directory, large_blocks, snapshots[0], snapshots[1]] {
            denied(helper.request(&create_from("vol-d", spec, source))?, ErrorKind::WrongKind, source)?;
        }
    }
    for source in ["vol-a", "snap-a"] {
        for spec in [image_spec(SIZE), directory, large_blocks, snapshots[0], snapshots[1]] {
            denied(helper.request(&create_from("vol-d", spec, source))?, ErrorKind::WrongKind, source)?;
        }
    }
    for spec in [directory, image_spec(SIZE), filesystem] {
        denied(helper.request(&create_from("vol-d", spec, "vol-c"))?, ErrorKind::Unsupported, "backing: image")?;
    }
    denied(helper.request(&create_snapshot("vol-c", "snap-c"))?, ErrorKind::Unsupported, "backing: image")?;
    for source in ["vol-b", "snap-b"] {
        denied(helper.request(&create_from("vol-d", image_spec(SIZE - 4096), source))?, ErrorKind::Invalid, "size")?;
    }
    for spec in snapshots {
        denied(helper.request(&create("vol-d", spec))?, ErrorKind::Invalid, "snapshot")?;
    }
    rig.pool().holds(&["snap-a", "snap-b", "vol-a", "vol-b", "vol-c"])
}

fn a_snapshot_is_nothing_but_a_snapshot(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    take(&helper, "vol-a", "snap-a")?;
    take(&helper, "vol-b", "snap-b")?;
    for id in ["snap-a", "snap-b"] {
        let inodes = Inodes::try_from(5_u64)?;
        let own = || volume(id);
        for request in [
            attach(id),
            make_device(id, "d"),
            bind(id, "t"),
            bind_exclusively(id, "t"),
            mount_filesystem(id),
            unmount_filesystem(id),
            grow_filesystem(id, 2 * SIZE),
            Request::LoopResize { volume: own() },
            Request::LoopAttach { volume: own(), read_only: true },
            Request::GrowImage { volume: own(), size: bytes(2 * SIZE) },
            Request::SetQuota { volume: own(), size: bytes(2 * SIZE), inodes },
            Request::SetInodes { volume: own(), inodes },
            Request::Allocate { volume: own() },
            Request::DeleteUnused { volume: own() },
            delete(id),
        ] {
            denied(helper.request(&request)?, ErrorKind::WrongKind, id)?;
        }
        denied(helper.request(&create_snapshot(id, "snap-c"))?, ErrorKind::Invalid, "snapshot itself")?;
        denied(helper.request(&delete_snapshot("vol-a"))?, ErrorKind::WrongKind, "vol-a")?;
        let usage = helper.usage(id, None)?;
        ensure!(usage.condition.is_none() && usage.targets == 0, "{usage:?}");
        let at = Request::Usage { volume: own(), target: Some(target("work", "t")) };
        denied(helper.request(&at)?, ErrorKind::NotFound, id)?;
    }
    helper.ask_all(["snap-a", "snap-b", "snap-a"].map(delete_snapshot))
}

fn a_copy_stays_in_the_pool_of_its_source(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "other"])?;
    let helper = rig.started_helper()?;
    helper.ask(&create("vol-a", image_spec(1 << 20)))?;
    take(&helper, "vol-a", "snap-a")?;
    for source in ["vol-a", "snap-a"] {
        let request = Request::CreateFrom {
            volume: volume("vol-b"),
            pool: "other".parse()?,
            spec: image_spec(1 << 20),
            source: volume(source),
        };
        denied(helper.request(&request)?, ErrorKind::Invalid, "pool default")?;
        // Nor is one that is there found in another pool.
        helper.ask(&create_from("vol-b", image_spec(1 << 20), source))?;
        denied(helper.request(&request)?, ErrorKind::AlreadyExists, "pool default")?;
        helper.ask(&delete("vol-b"))?;
    }
    let other = create_in("other", "vol-b", image_spec(1 << 20));
    helper.ask(&other)?;
    take(&helper, "vol-b", "snap-b")?;
    let delta = Request::Delta { snapshot: volume("snap-b"), base: Some(volume("snap-a")), from: 0 };
    denied(helper.request(&delta)?, ErrorKind::Invalid, "another pool")?;
    let beyond = Request::Delta { snapshot: volume("snap-b"), base: None, from: (1 << 20) + 1 };
    denied(helper.request(&beyond)?, ErrorKind::Invalid, "ends at")?;
    for (of, base) in [("vol-b", None), ("snap-b", Some(volume("vol-b")))] {
        let delta = Request::Delta { snapshot: volume(of), base, from: 0 };
        denied(helper.request(&delta)?, ErrorKind::WrongKind, "vol-b")?;
    }
    Ok(())
}

/// Root copies records about: a snapshot of a tenant's device with the record of one of a filesystem, and the reverse.
fn a_record_of_another_kind_is_not_served(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    take(&helper, "vol-a", "snap-a")?;
    take(&helper, "vol-b", "snap-b")?;
    rig.stop_helper()?;
    let pool = rig.pool().clone();
    let records = [pool.record("snap-a")?.1, pool.record("snap-b")?.1];
    let set =
        |id: &str, value: &[u8]| rustix::fs::setxattr(pool.volume(id), RECORD, value, rustix::fs::XattrFlags::empty());
    set("snap-a", &records[1])?;
    set("snap-b", &records[0])?;
    let helper = rig.started_helper()?;
    for id in ["snap-a", "snap-b"] {
        for spec in [filesystem_spec(SIZE), image_spec(SIZE)] {
            denied(helper.request(&create_from("vol-d", spec, id))?, ErrorKind::PoolBroken, "its image is not")?;
        }
    }
    rig.stop_helper()?;
    set("snap-a", &records[0])?;
    set("snap-b", &records[1])?;
    rustix::fs::removexattr(rig.pool().volume("snap-b"), "trusted.bulkhead.origin")?;
    let helper = rig.started_helper()?;
    denied(helper.request(&create_from("vol-d", image_spec(SIZE), "snap-b"))?, ErrorKind::PoolBroken, "copy of")?;
    helper.ask(&delete_snapshot("snap-a"))?;
    rig.stop_helper()?;
    std::fs::remove_dir_all(rig.pool().volume("snap-b"))?;
    rig.start_helper()
}

/// Root restores the wrong file while the helper serves. XFS gives it the number of the inode that was just removed.
fn a_tenants_image_in_place_of_a_filesystems_is_not_copied(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    take(&helper, "vol-a", "snap-a")?;
    let (device, pool) = (rig.pool().image("vol-b"), rig.pool().clone());
    std::fs::File::options().write(true).open(&device)?.sync_all()?;
    for (id, snapshot) in [("vol-a", "snap-d"), ("snap-a", "")] {
        let image = pool.image(id);
        let own = image.metadata()?.ino();
        // A number is free a moment after the file is gone.
        rig.eventually(10, || {
            std::fs::remove_file(&image)?;
            std::thread::sleep(std::time::Duration::from_millis(50));
            std::fs::copy(&device, &image)?;
            ensure!(image.metadata()?.ino() == own, "{id}: its image has another number");
            Ok(())
        })?;
        denied(helper.request(&create_from("vol-d", filesystem_spec(SIZE), id))?, ErrorKind::PoolBroken, "image")?;
        if !snapshot.is_empty() {
            denied(helper.request(&mount_filesystem(id))?, ErrorKind::PoolBroken, "image")?;
            denied(helper.request(&create_snapshot(id, snapshot))?, ErrorKind::PoolBroken, "image")?;
        }
    }
    pool.holds(&["snap-a", "vol-a", "vol-b", "vol-c"])
}

fn an_older_client_neither_sees_snapshots_nor_makes_any(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    take(&helper, "vol-b", "snap-b")?;
    let older = HelperClient::connect(&rig.helper_socket())?;
    ensure!(older.hello(3)?.version == 3);
    for request in [
        create_snapshot("vol-b", "snap-c"),
        create_from("vol-d", image_spec(SIZE), "snap-b"),
        delete_snapshot("snap-b"),
    ] {
        denied(older.request(&request)?, ErrorKind::Invalid, "needs protocol version 4")?;
    }
    let usage = Request::Usage { volume: volume("snap-b"), target: None };
    denied(older.request(&usage)?, ErrorKind::Unsupported, "needs protocol version 4")?;
    denied(older.request(&delete("snap-b"))?, ErrorKind::WrongKind, "snap-b")?;
    ensure!(older.volumes()? == [volume("vol-a"), volume("vol-b"), volume("vol-c")]);
    Ok(())
}
