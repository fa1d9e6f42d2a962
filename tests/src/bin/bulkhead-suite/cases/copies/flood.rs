//! A frontend that takes snapshots as fast as it can, until it is refused: other volumes keep what they were promised, and
//! once all are deleted nothing is left.

use anyhow::{Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, PoolStatus, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

use super::promises::{rest, rewrite_in_pieces};
use super::{check_filled, end, fill, gone, listed, publish, start, take};

cases! {
    snapshots_without_end_take_no_other_volumes_room: Bare + Xfs,
    snapshots_of_nothing_take_no_other_volumes_room: Bare + Xfs,
}

const MIB: u64 = 1 << 20;
const SIZE: u64 = 24 * MIB;

/// The id of one of them.
fn id(number: usize) -> String {
    format!("snap-{number:05}")
}

/// Takes snapshots until there is no room for another, and returns how many there are.
fn take_all(helper: &HelperClient, of: &str, most: usize, before_each: impl Fn(usize) -> Result<()>) -> Result<usize> {
    for number in 0..most {
        before_each(number)?;
        match helper.request(&create_snapshot(of, &id(number)))? {
            Ok(Reply::Snapshot(_)) => {}
            Err(error) if matches!(error.kind, ErrorKind::NoRoom { .. }) => return Ok(number),
            other => bail!("after {number} snapshots: {other:?}"),
        }
    }
    bail!("{most} snapshots find room: {:?}", helper.pool_status("default")?)
}

fn delete_all(rig: &Rig, helper: &HelperClient) -> Result<()> {
    for snapshot in listed(helper, None)? {
        helper.ask(&Request::DeleteSnapshot { snapshot: snapshot.snapshot })?;
    }
    gone(rig)
}

/// Waits until a pool has as much room as it had.
fn check_room(rig: &Rig, helper: &HelperClient, before: &PoolStatus) -> Result<()> {
    rig.eventually(10, || {
        let after = helper.pool_status("default")?;
        ensure!(after.promised == before.promised, "{before:?}, and in the end {after:?}");
        ensure!(after.available + MIB >= before.available, "{before:?}, and in the end {after:?}");
        Ok(())
    })
}

fn snapshots_without_end_take_no_other_volumes_room(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    for (id, byte) in [("vol-a", 1), ("vol-b", 9)] {
        helper.ask(&create(id, image_spec(SIZE)))?;
        publish(&helper, id)?;
        fill(&rig.target(id), byte, 0, SIZE)?;
    }
    take(&helper, "vol-b", "kept")?;
    rest(&helper)?;
    let before = helper.pool_status("default")?;
    let device = rig.target("vol-a");
    for round in 0..2 {
        // Each refers to blocks of its own.
        let taken = take_all(&helper, "vol-a", 100, |number| fill(&device, u8::try_from(10 + number)?, 0, SIZE))?;
        ensure!(taken > 5, "{taken} snapshots in round {round}");
        // The other volume, whose blocks are shared, is written anew in the worst order, and so is the one that floods.
        for byte in [2, 3] {
            for id in ["vol-b", "vol-a"] {
                rewrite_in_pieces(rig, id, SIZE, byte)?;
            }
        }
        check_filled(&rig.pool().image(&id(3)), 13, 0, SIZE)?;
        check_filled(&rig.pool().image("kept"), 9, 0, SIZE)?;
        helper.ask_all((0..taken).map(|number| delete_snapshot(&id(number))))?;
        gone(rig)?;
        check_room(rig, &helper, &before)?;
    }
    for id in ["vol-a", "vol-b"] {
        end(&helper, id)?;
    }
    delete_all(rig, &helper)?;
    rig.pool().holds(&[])
}

/// Each takes a directory, a file and what is noted of them, although it refers to nothing. The name of their source is so
/// long that what is noted of them does not fit into an inode.
fn snapshots_of_nothing_take_no_other_volumes_room(rig: &mut Rig) -> Result<()> {
    let (helper, nothing) = (start(rig)?, format!("nothing-{}", "x".repeat(122)));
    helper.ask_all(["vol-a", &nothing].map(|id| create(id, image_spec(SIZE))))?;
    publish(&helper, "vol-a")?;
    fill(&rig.target("vol-a"), 1, 0, SIZE)?;
    take(&helper, "vol-a", "kept")?;
    let before = helper.pool_status("default")?;
    // As much is left as some of them take.
    let others = rest(&helper)? - 4 * MIB;
    helper.ask(&create("vol-z", image_spec(others)))?;
    // Six thousand would be enough for the write below to fail.
    let taken = take_all(&helper, &nothing, 1000, |_| Ok(()));
    rewrite_in_pieces(rig, "vol-a", SIZE, 2)?;
    check_filled(&rig.pool().image("kept"), 1, 0, SIZE)?;
    let taken = taken?;
    helper.ask(&delete("vol-z"))?;
    helper.ask_all((0..taken).map(|number| delete_snapshot(&id(number))))?;
    gone(rig)?;
    check_room(rig, &helper, &before)?;
    helper.ask(&delete(&nothing))?;
    end(&helper, "vol-a")?;
    delete_all(rig, &helper)
}
