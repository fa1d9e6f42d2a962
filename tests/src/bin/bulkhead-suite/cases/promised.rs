//! What a pool promises can be written, in the orders that are hardest on a filesystem that needs room for itself.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::VolumeSpec;
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::pool::{self, Pool};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, program};

use super::owner::set;

cases! {
    the_largest_sparse_volume_is_written_to_its_last_block: Bare + Filesystem + Slow,
    the_largest_thick_volume_is_made_and_written_after_it_was_discarded: Bare + Filesystem + Slow,
    beside_very_many_small_volumes_the_rest_can_be_written: Bare + Filesystem + Slow,
}

const MIB: u64 = 1 << 20;
/// mkfs.xfs makes none that is smaller.
const POOL: u64 = 300 * MIB;

/// Starts a helper on a pool in which no room is kept for anything: XFS whose files share no blocks, or ext4 that has nothing
/// reserved for root.
fn start(rig: &mut Rig) -> Result<HelperClient> {
    let directory = rig.work().join("pools/default");
    let disk = directory.with_extension("disk");
    std::fs::create_dir_all(&directory)?;
    File::create_new(&disk)?.set_len(POOL)?;
    let mut mkfs = match rig.run_options.pool_fs {
        PoolFilesystem::Xfs => Command::new("mkfs.xfs"),
        PoolFilesystem::Ext4 => Command::new("mkfs.ext4"),
    };
    match rig.run_options.pool_fs {
        PoolFilesystem::Xfs => mkfs.args(["-q", "-m", "reflink=0"]),
        PoolFilesystem::Ext4 => mkfs.args(["-q", "-m", "0"]),
    };
    if rig.run_options.pool_fs == PoolFilesystem::Ext4 && rig.run_options.enforces_sizes() {
        mkfs.args(["-O", "quota,project", "-E", "quotatype=prjquota"]);
    }
    pool::run(mkfs.arg(&disk))?;
    pool::mount_image(&rig.run_options, &disk, &directory)?;
    pool::run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&directory))?;
    rig.pools.push(Pool::mounted(&rig.run_options, &directory, "default"));
    rig.started_helper()
}

/// Writes every other block of a published device, and then the others.
fn write_in_pieces(rig: &Rig, id: &str, size: u64) -> Result<()> {
    let device = File::options().write(true).open(rig.target(id))?;
    for first in [0, 1] {
        for (number, block) in (first..size / 4096).step_by(2).enumerate() {
            device.write_all_at(&[7; 4096], block * 4096)?;
            if number % 4096 == 4095 {
                device.sync_data()?;
            }
        }
        device.sync_all().with_context(|| format!("{id} of {size} bytes: every other block from {first} on"))?;
    }
    Ok(())
}

/// Makes the largest volume that the pool has room for, publishes it, and returns its size.
fn make_largest(helper: &HelperClient, spec: fn(u64) -> VolumeSpec) -> Result<u64> {
    let status = helper.pool_status("default")?;
    let size = status.largest_volume;
    helper.ask(&create("vol-a", spec(size))).with_context(|| format!("{status:?}"))?;
    helper.ask_all([attach("vol-a"), make_device("vol-a", "vol-a")])?;
    Ok(size)
}

fn end(helper: &HelperClient) -> Result<()> {
    helper.ask_all([remove_device("vol-a", "vol-a"), detach("vol-a"), delete("vol-a")])
}

fn the_largest_sparse_volume_is_written_to_its_last_block(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    let size = make_largest(&helper, sparse_spec)?;
    ensure!(size > POOL / 2, "{size}");
    write_in_pieces(rig, "vol-a", size)?;
    end(&helper)
}

fn the_largest_thick_volume_is_made_and_written_after_it_was_discarded(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    let size = make_largest(&helper, image_spec)?;
    ensure!(size > POOL / 2, "{size}");
    pool::run(Command::new("blkdiscard").arg(rig.target("vol-a")))?;
    write_in_pieces(rig, "vol-a", size)?;
    end(&helper)
}

/// Each takes a directory, a file and what is noted of them besides its content.
fn beside_very_many_small_volumes_the_rest_can_be_written(rig: &mut Rig) -> Result<()> {
    const NUMBER: usize = 800;
    let (helper, note) = (start(rig)?, "n".repeat(400));
    for number in 0..NUMBER {
        let id = format!("small-{number:04}");
        helper.ask_all([create(&id, image_spec(4096)), set(&id, &note)])?;
    }
    let size = make_largest(&helper, sparse_spec)?;
    write_in_pieces(rig, "vol-a", size)?;
    helper.ask_all((0..NUMBER).map(|number| delete(&format!("small-{number:04}"))))?;
    end(&helper)
}
