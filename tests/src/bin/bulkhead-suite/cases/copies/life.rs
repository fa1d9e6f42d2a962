//! The life of a snapshot and of the volumes that are made from it.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};
use bulkhead_protocol::{BlockSize, Condition, ErrorKind, NameHash, Reply, Request, VolumeKind, VolumeSpec};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

use super::{allocated, check_filled, end, fill, listed, origin, take};

cases! {
    a_snapshot_keeps_what_was_written_before_it: Xfs,
    a_restored_volume_is_as_thick_as_any_other: Xfs,
    sources_and_copies_are_deleted_in_any_order: Xfs,
    a_repeated_request_finds_what_is_there: Xfs,
    snapshots_are_found_again_after_a_restart: Xfs,
    a_volume_in_too_many_pieces_is_not_copied: Bare + Xfs,
    a_pool_that_cannot_share_blocks_says_so: Bare + Filesystem,
    a_volume_that_is_not_accessed_directly_any_more_says_so: Xfs,
}

const SIZE: u64 = 16 << 20;

/// A block volume that holds ones, attached and published at the target of its name.
fn publish_new(rig: &Rig, id: &str) -> Result<HelperClient> {
    let helper = rig.helper()?;
    helper.ask_all([create(id, image_spec(SIZE)), attach(id), make_device(id, id)])?;
    fill(&rig.target(id), 1, 0, SIZE)?;
    Ok(helper)
}

fn a_snapshot_keeps_what_was_written_before_it(rig: &mut Rig) -> Result<()> {
    let helper = publish_new(rig, "vol-a")?;
    let before = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let snapshot = take(&helper, "vol-a", "snap-1")?;
    let after = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    ensure!((before..=after).contains(&snapshot.origin.copied.into()), "{snapshot:?}");
    ensure!(snapshot.size == bytes(SIZE) && snapshot.block && snapshot.allocated >= SIZE, "{snapshot:?}");
    ensure!(snapshot.origin.source == volume("vol-a") && snapshot.origin.family == volume("vol-a"), "{snapshot:?}");
    fill(&rig.target("vol-a"), 2, 0, SIZE / 2)?;
    check_filled(&rig.pool().image("snap-1"), 1, 0, SIZE)?;
    // A larger one, whose end reads as zeros; and a copy of the volume as it is now.
    ensure!(helper.ask(&create_from("vol-b", image_spec(2 * SIZE), "snap-1"))? == Reply::Size(bytes(2 * SIZE)));
    helper.ask(&create_from("vol-c", image_spec(SIZE), "vol-a"))?;
    for id in ["vol-b", "vol-c"] {
        helper.ask_all([attach(id), make_device(id, id)])?;
    }
    check_filled(&rig.target("vol-b"), 1, 0, SIZE)?;
    check_filled(&rig.target("vol-b"), 0, SIZE, SIZE)?;
    check_filled(&rig.target("vol-c"), 2, 0, SIZE / 2)?;
    check_filled(&rig.target("vol-c"), 1, SIZE / 2, SIZE / 2)?;
    // Each is written to on its own.
    fill(&rig.target("vol-b"), 3, 0, SIZE)?;
    check_filled(&rig.pool().image("snap-1"), 1, 0, SIZE)?;
    check_filled(&rig.target("vol-a"), 2, 0, SIZE / 2)?;
    // A copy of a copy is of the same family.
    let second = take(&helper, "vol-b", "snap-2")?;
    ensure!(second.origin.source == volume("vol-b") && second.origin.family == volume("vol-a"), "{second:?}");
    // They outlive whatever they were taken of.
    for id in ["vol-a", "vol-b", "vol-c"] {
        end(&helper, id)?;
    }
    helper.ask_all(["snap-1", "snap-2", "snap-1"].map(delete_snapshot))
}

/// What was allocated and never written has no blocks in a snapshot, and has them again in what is restored from it.
fn a_restored_volume_is_as_thick_as_any_other(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([create("vol-a", image_spec(SIZE)), attach("vol-a"), make_device("vol-a", "vol-a")])?;
    for at in [1, 5, 9] {
        fill(&rig.target("vol-a"), 7, at << 20, 4096)?;
    }
    let snapshot = take(&helper, "vol-a", "snap-1")?;
    ensure!(snapshot.allocated < SIZE / 2 && snapshot.allocated >= 3 * 4096, "{snapshot:?}");
    helper.ask(&create_from("vol-b", image_spec(SIZE), "snap-1"))?;
    helper.ask(&create_from("vol-c", image_spec(2 * SIZE), "vol-a"))?;
    ensure!(allocated(&rig.pool().image("vol-b"))? >= SIZE && allocated(&rig.pool().image("vol-c"))? >= 2 * SIZE);
    helper.ask(&create_from("vol-d", sparse_spec(SIZE), "snap-1"))?;
    ensure!(allocated(&rig.pool().image("vol-d"))? < SIZE / 2);
    for id in ["vol-b", "vol-c", "vol-d"] {
        check_filled(&rig.pool().image(id), 7, 5 << 20, 4096)?;
        check_filled(&rig.pool().image(id), 0, 6 << 20, 1 << 20)?;
    }
    Ok(())
}

fn sources_and_copies_are_deleted_in_any_order(rig: &mut Rig) -> Result<()> {
    let helper = publish_new(rig, "vol-a")?;
    take(&helper, "vol-a", "snap-1")?;
    end(&helper, "vol-a")?;
    helper.ask_all([create_from("vol-b", image_spec(SIZE), "snap-1"), delete_snapshot("snap-1")])?;
    check_filled(&rig.pool().image("vol-b"), 1, 0, SIZE)?;
    let origin = origin(&helper, "vol-b")?;
    ensure!(origin.is_some_and(|origin| origin.source == volume("snap-1") && origin.family == volume("vol-a")));
    // It was never published, and yet may be the last to hold what is in it.
    let unused = discard("vol-b");
    denied(helper.request(&unused)?, ErrorKind::Refused, "may hold data")?;
    let helper = rig.restarted_helper()?;
    denied(helper.request(&unused)?, ErrorKind::Refused, "may hold data")?;
    helper.ask(&delete("vol-b"))?;
    denied(helper.request(&create_snapshot("vol-a", "snap-1"))?, ErrorKind::NotFound, "vol-a")?;
    denied(helper.request(&create_from("vol-c", image_spec(SIZE), "snap-1"))?, ErrorKind::NotFound, "snap-1")
}

fn a_repeated_request_finds_what_is_there(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all(["vol-a", "vol-z"].map(|id| create(id, image_spec(SIZE))))?;
    let first = take(&helper, "vol-a", "snap-1")?;
    ensure!(take(&helper, "vol-a", "snap-1")? == first);
    let exists = |request: &Request| denied(helper.request(request)?, ErrorKind::AlreadyExists, "exists");
    exists(&create_snapshot("vol-z", "snap-1"))?;
    exists(&create_snapshot("vol-a", "vol-z"))?;
    let other_name = NameHash([6; 32]);
    exists(&Request::CreateSnapshot { volume: volume("vol-a"), snapshot: volume("snap-1"), name_hash: other_name })?;
    let spec = image_spec(SIZE);
    for _ in 0..2 {
        ensure!(helper.ask(&create_from("vol-b", spec, "snap-1"))? == Reply::Size(bytes(SIZE)));
    }
    exists(&create_from("vol-b", spec, "vol-a"))?;
    exists(&create_from("vol-b", VolumeSpec { name_hash: other_name, ..spec }, "snap-1"))?;
    exists(&create("vol-b", spec))?;
    exists(&create_from("vol-z", spec, "snap-1"))?;
    exists(&create("snap-1", spec))?;
    denied(helper.request(&create_from("vol-c", spec, "vol-c"))?, ErrorKind::Busy, "vol-c")?;
    // When the source is gone, what was made of it is still found.
    helper.ask(&delete("vol-a"))?;
    ensure!(take(&helper, "vol-a", "snap-1")? == first);
    helper.ask(&delete_snapshot("snap-1"))?;
    ensure!(helper.ask(&create_from("vol-b", spec, "snap-1"))? == Reply::Size(bytes(SIZE)));
    Ok(())
}

fn snapshots_are_found_again_after_a_restart(rig: &mut Rig) -> Result<()> {
    let helper = publish_new(rig, "vol-a")?;
    for number in 1..=5 {
        take(&helper, "vol-a", &format!("snap-{number}"))?;
    }
    helper.ask(&create_from("vol-b", image_spec(SIZE), "snap-3"))?;
    take(&helper, "vol-b", "snap-of-b")?;
    let known = |helper: &HelperClient| -> Result<_> {
        let counts = helper.ask(&Request::PoolCounts { pool: "default".parse()? })?;
        let Reply::Counts { snapshots, extent_limit, snapshot_bytes, .. } = counts else { bail!("{counts:?}") };
        let promised = helper.pool_status("default")?.promised;
        let listed = listed(helper, None)?;
        ensure!(snapshot_bytes == listed.iter().map(|snapshot| snapshot.allocated).sum::<u64>(), "{snapshot_bytes}");
        Ok((listed, origin(helper, "vol-b")?, helper.volumes()?, snapshots, extent_limit, promised))
    };
    let before = known(&helper)?;
    ensure!(before.0.len() == 6 && before.2 == [volume("vol-a"), volume("vol-b")], "{before:?}");
    ensure!((before.3, before.4) == (6, 200_000), "{before:?}");
    ensure!(listed(&helper, Some("vol-b"))?.len() == 1 && listed(&helper, Some("vol-c"))?.is_empty());
    let helper = rig.restarted_helper()?;
    let after = known(&helper)?;
    ensure!(after == before, "before {before:?}, after {after:?}");
    check_filled(&rig.pool().image("snap-5"), 1, 0, SIZE)?;
    helper.ask(&delete("vol-b"))?;
    end(&helper, "vol-a")?;
    helper.ask_all(listed(&helper, None)?.into_iter().map(|found| Request::DeleteSnapshot { snapshot: found.snapshot }))
}

fn a_volume_in_too_many_pieces_is_not_copied(rig: &mut Rig) -> Result<()> {
    rig.add_pool("default")?;
    rig.pools[0].options.push_str(",extents=20");
    rig.start_helper()?;
    let helper = publish_new(rig, "vol-a")?;
    take(&helper, "vol-a", "snap-1")?;
    for at in 0..40 {
        fill(&rig.target("vol-a"), 2, at << 17, 4096)?;
    }
    let response = helper.request(&create_snapshot("vol-a", "snap-2"))?;
    let Err(error) = response else { bail!("{response:?}") };
    let ErrorKind::TooFragmented { extents, limit: 20 } = error.kind else { bail!("{error:?}") };
    ensure!(extents > 40 && error.message.as_str().contains("extents=20"), "{error:?}");
    rig.pool().holds(&["snap-1", "vol-a"])?;
    // What holds still is in fewer pieces.
    helper.ask_all([create_from("vol-b", image_spec(SIZE), "snap-1"), delete("vol-b")])
}

fn a_pool_that_cannot_share_blocks_says_so(rig: &mut Rig) -> Result<()> {
    rig.add_pool_without_shared_blocks("default")?;
    let helper = rig.started_helper()?;
    helper.ask(&create("vol-a", image_spec(SIZE)))?;
    let counts = helper.ask(&Request::PoolCounts { pool: "default".parse()? })?;
    ensure!(matches!(counts, Reply::Counts { extent_limit: 0, .. }), "{counts:?}");
    for request in [create_snapshot("vol-a", "snap-1"), create_from("vol-b", image_spec(SIZE), "vol-a")] {
        denied(helper.request(&request)?, ErrorKind::Unsupported, "reflink")?;
    }
    Ok(())
}

/// Since it has shared blocks, the pool's filesystem may want larger ones for direct I/O.
fn a_volume_that_is_not_accessed_directly_any_more_says_so(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    let small = image_spec(SIZE);
    let large = VolumeSpec { kind: VolumeKind::Image { sparse: false, block_size: BlockSize::B4096 }, ..small };
    for (id, spec) in [("vol-a", small), ("vol-b", large)] {
        helper.ask(&create(id, spec))?;
        for is_copied in [false, true] {
            helper.ask(&attach(id))?;
            let (device, usage) = (rig.pool().only_device()?, helper.usage(id, None)?);
            let wanted = (!device.direct).then_some(Condition::NotDirect);
            ensure!(usage.condition == wanted, "{id}, copied {is_copied}: {:?}, {device:?}", usage.condition);
            ensure!(device.direct || is_copied && spec == small, "{id}, copied {is_copied}: {device:?}");
            if !is_copied {
                take(&helper, id, "snap-1")?;
                helper.ask(&delete_snapshot("snap-1"))?;
            }
            helper.ask(&detach(id))?;
        }
    }
    Ok(())
}
