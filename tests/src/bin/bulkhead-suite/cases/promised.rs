//! What a pool promises can be written, in the order that is hardest on a filesystem that needs room for itself. Most of the
//! pool is allocated at once: what is left tells as much, and takes less time.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::VolumeSpec;
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::pool;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::PoolFilesystem;

use super::copies::promises::{rest, rewrite_in_pieces};
use super::owner::set;

cases! {
    the_largest_sparse_volume_is_written_to_its_last_block: Bare + Filesystem,
    the_largest_thick_volume_is_made_and_written_after_it_was_discarded: Bare + Filesystem,
    beside_very_many_small_volumes_the_rest_can_be_written: Bare + Filesystem,
}

const MIB: u64 = 1 << 20;
/// How much is left for the volume that is written.
const LEFT: u64 = 48 * MIB;

/// Starts a helper on a pool whose filesystem keeps nothing: XFS whose files share no blocks, or ext4 with nothing reserved for
/// root.
fn start(rig: &mut Rig) -> Result<HelperClient> {
    rig.add_pool_without_shared_blocks("default")?;
    if rig.run_options.pool_fs == PoolFilesystem::Ext4 {
        let device = pool::output(Command::new("findmnt").args(["-no", "SOURCE"]).arg(&rig.pool().directory))?;
        pool::run(Command::new("tune2fs").args(["-m", "0", &device]))?;
    }
    rig.started_helper()
}

/// Leaves little of the pool, makes the largest volume that there is room for, and writes all of it.
fn write_the_rest(rig: &Rig, helper: &HelperClient, spec: fn(u64) -> VolumeSpec, discards: bool) -> Result<()> {
    helper.ask(&create("vol-z", image_spec(rest(helper)? - LEFT)))?;
    let size = rest(helper)?;
    ensure!((LEFT / 2..=LEFT).contains(&size), "{size} bytes are left");
    helper.ask(&create("vol-a", spec(size))).with_context(|| format!("the largest volume has {size} bytes"))?;
    helper.ask_all([attach("vol-a"), make_device("vol-a", "vol-a")])?;
    if discards {
        pool::run(Command::new("blkdiscard").arg(rig.target("vol-a")))?;
    }
    rewrite_in_pieces(rig, "vol-a", size, 7)?;
    helper.ask_all([remove_device("vol-a", "vol-a"), detach("vol-a"), delete("vol-a"), delete("vol-z")])
}

fn the_largest_sparse_volume_is_written_to_its_last_block(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    write_the_rest(rig, &helper, sparse_spec, false)
}

fn the_largest_thick_volume_is_made_and_written_after_it_was_discarded(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    write_the_rest(rig, &helper, image_spec, true)
}

/// Each takes a directory, a file and what is noted of them besides its content.
fn beside_very_many_small_volumes_the_rest_can_be_written(rig: &mut Rig) -> Result<()> {
    let (helper, note) = (start(rig)?, "n".repeat(400));
    let ids: Vec<String> = (0..400).map(|number| format!("small-{number:03}")).collect();
    helper.ask_all(ids.iter().flat_map(|id| [create(id, image_spec(4096)), set(id, &note)]))?;
    write_the_rest(rig, &helper, sparse_spec, false)?;
    helper.ask_all(ids.iter().map(|id| delete(id)))
}
