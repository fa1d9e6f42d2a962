//! Nothing is promised twice, and no promise is broken, however much is shared.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::expect::no_room;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

use super::{gone, publish, start, take};

cases! {
    a_pool_of_copies_is_rewritten_to_the_last_block: Bare + Xfs + Slow,
    a_snapshot_is_promised_what_it_refers_to: Bare + Xfs,
    a_copy_without_room_leaves_nothing: Bare + Xfs,
}

const MIB: u64 = 1 << 20;

/// Rewrites a device block by block, in an order that leaves no two together.
fn rewrite(rig: &Rig, id: &str, size: u64, byte: u8) -> Result<()> {
    let device = File::options().write(true).open(rig.target(id))?;
    let blocks = size / 4096;
    for number in 0..blocks {
        let at = number * 7919 % blocks * 4096;
        device.write_all_at(&[byte; 4096], at)?;
        if number % 512 == 511 {
            device.sync_data()?;
        }
    }
    Ok(device.sync_all()?)
}

/// A volume, its snapshots and its copies; the rest of the pool promised to another volume; and then everything that can be
/// written is written, in the worst order.
fn a_pool_of_copies_is_rewritten_to_the_last_block(rig: &mut Rig) -> Result<()> {
    const SIZE: u64 = 40 * MIB;
    let helper = start(rig)?;
    helper.ask(&create("vol-a", image_spec(SIZE)))?;
    publish(&helper, "vol-a")?;
    rewrite(rig, "vol-a", SIZE, 1)?;
    for id in ["snap-1", "snap-2"] {
        take(&helper, "vol-a", id)?;
    }
    for id in ["vol-b", "vol-c"] {
        helper.ask(&create_from(id, image_spec(SIZE), "snap-1"))?;
        publish(&helper, id)?;
    }
    // The measured figure is a second old at most.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let rest = helper.pool_status("default")?.largest_volume;
    ensure!(rest > 100 * MIB, "{rest}");
    helper.ask(&create("vol-z", image_spec(rest)))?;
    publish(&helper, "vol-z")?;
    no_room(helper.request(&create("vol-y", image_spec(8 * MIB)))?)?;
    for byte in [2, 3] {
        for (id, size) in [("vol-a", SIZE), ("vol-b", SIZE), ("vol-c", SIZE), ("vol-z", rest)] {
            rewrite(rig, id, size, byte)?;
        }
    }
    let status = helper.pool_status("default")?;
    ensure!(
        status.conditions.as_slice().iter().all(|condition| !format!("{condition:?}").contains("Over")),
        "{status:?}"
    );
    Ok(())
}

fn a_snapshot_is_promised_what_it_refers_to(rig: &mut Rig) -> Result<()> {
    const SIZE: u64 = 64 * MIB;
    let helper = start(rig)?;
    helper.ask(&create("vol-a", image_spec(SIZE)))?;
    publish(&helper, "vol-a")?;
    let promised = |helper: &HelperClient| Ok::<_, anyhow::Error>(helper.pool_status("default")?.promised);
    let before = promised(&helper)?;
    take(&helper, "vol-a", "snap-0")?;
    ensure!(promised(&helper)? - before < MIB, "nothing was written");
    // Nor does it need room, however large the volume is that was never written.
    let rest = helper.pool_status("default")?.largest_volume;
    helper.ask(&create("vol-z", image_spec(rest - 8 * MIB)))?;
    take(&helper, "vol-z", "snap-z")?;
    helper.ask_all([delete_snapshot("snap-z"), delete("vol-z")])?;
    gone(rig)?;
    rewrite(rig, "vol-a", SIZE / 2, 1)?;
    let before = promised(&helper)?;
    let snapshot = take(&helper, "vol-a", "snap-1")?;
    let added = promised(&helper)? - before;
    // What it is itself takes two blocks.
    let wanted = snapshot.allocated + snapshot.allocated / 100 + 8192;
    ensure!(added == wanted && added > SIZE / 2, "{added} {snapshot:?}");
    // A restored volume is promised its whole size.
    let before = promised(&helper)?;
    helper.ask(&create_from("vol-b", image_spec(SIZE), "snap-1"))?;
    ensure!(promised(&helper)? - before == SIZE);
    Ok(())
}

fn a_copy_without_room_leaves_nothing(rig: &mut Rig) -> Result<()> {
    const SIZE: u64 = 120 * MIB;
    let helper = start(rig)?;
    helper.ask(&create("vol-a", image_spec(SIZE)))?;
    publish(&helper, "vol-a")?;
    rewrite(rig, "vol-a", SIZE, 1)?;
    take(&helper, "vol-a", "snap-1")?;
    for request in
        [create_from("vol-b", image_spec(2 * SIZE), "snap-1"), create_from("vol-b", image_spec(2 * SIZE), "vol-a")]
    {
        no_room(helper.request(&request)?)?;
    }
    take(&helper, "vol-a", "snap-2")?;
    no_room(helper.request(&create_snapshot("vol-a", "snap-3"))?)?;
    // Nothing was copied, so that no writer was stopped in vain: what is made and given up stays for a moment.
    rig.pool().holds(&["snap-1", "snap-2", "vol-a"])
}
