//! What is promised is there, in the orders of events that are hardest on it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::{Context, Result, anyhow, bail, ensure};
use bulkhead_protocol::{ErrorKind, Reply};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::pool::{self, Pool};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;

use super::{publish, start, take};

cases! {
    copies_without_snapshots_are_rewritten_to_the_last_block: Bare + Xfs + Slow,
    a_snapshot_is_promised_what_was_written_meanwhile: Bare + Xfs,
    what_was_not_written_out_counts_as_pieces: Bare + Xfs,
    what_a_pool_that_grew_needs_for_itself_is_not_promised: Bare + Xfs,
    a_pool_with_large_blocks_copies_too: Bare + Xfs + Host,
}

const MIB: u64 = 1 << 20;

/// Returns what may still be promised; the measured figure is a second old at most.
pub fn rest(helper: &HelperClient) -> Result<u64> {
    std::thread::sleep(std::time::Duration::from_millis(1100));
    Ok(helper.pool_status("default")?.largest_volume)
}

/// Writes every other block of a device, and then the others: no two blocks that are next to each other in it are so on the
/// pool.
pub fn rewrite_in_pieces(rig: &Rig, id: &str, size: u64, byte: u8) -> Result<()> {
    let device = File::options().write(true).open(rig.target(id))?;
    for first in [0, 1] {
        for (number, block) in (first..size / 4096).step_by(2).enumerate() {
            device.write_all_at(&[byte; 4096], block * 4096)?;
            if number % 1024 == 1023 {
                device.sync_data()?;
            }
        }
        device.sync_all().with_context(|| format!("{id}: every other block from {first} on"))?;
    }
    Ok(())
}

/// No snapshot stands for what the filesystem has to note of copies of a volume.
fn copies_without_snapshots_are_rewritten_to_the_last_block(rig: &mut Rig) -> Result<()> {
    const SIZE: u64 = 40 * MIB;
    const COPIES: [&str; 6] = ["vol-b", "vol-c", "vol-d", "vol-e", "vol-f", "vol-g"];
    let helper = start(rig)?;
    helper.ask(&create("vol-a", image_spec(SIZE)))?;
    publish(&helper, "vol-a")?;
    rewrite_in_pieces(rig, "vol-a", SIZE, 1)?;
    for id in COPIES {
        helper.ask(&create_from(id, image_spec(SIZE), "vol-a"))?;
        publish(&helper, id)?;
    }
    let rest = rest(&helper)?;
    helper.ask(&create("vol-z", image_spec(rest)))?;
    publish(&helper, "vol-z")?;
    for (id, size) in COPIES.map(|id| (id, SIZE)).into_iter().chain([("vol-a", SIZE), ("vol-z", rest)]) {
        rewrite_in_pieces(rig, id, size, 2)?;
    }
    Ok(())
}

/// A sparse volume is written to for the first time while snapshots of it are taken, in a pool with little room.
fn a_snapshot_is_promised_what_was_written_meanwhile(rig: &mut Rig) -> Result<()> {
    const SIZE: u64 = 128 * MIB;
    let helper = start(rig)?;
    helper.ask(&create("vol-a", sparse_spec(SIZE)))?;
    publish(&helper, "vol-a")?;
    let others = rest(&helper)? - SIZE / 2;
    helper.ask(&create("vol-z", sparse_spec(others)))?;
    let room = helper.pool_status("default")?;
    let limit = room.promised + room.available;
    let (device, is_over) = (File::options().write(true).open(rig.target("vol-a"))?, AtomicBool::new(false));
    let most = std::thread::scope(|scope| -> Result<u64> {
        let writer = scope.spawn(|| -> Result<()> {
            for at in (0..SIZE).step_by(1 << 18) {
                if is_over.load(Relaxed) {
                    break;
                }
                device.write_all_at(&vec![1; 1 << 18], at)?;
                device.sync_data()?;
            }
            Ok(())
        });
        let mut most = 0;
        let taken = loop {
            match helper.request(&create_snapshot("vol-a", "snap-1"))? {
                Ok(Reply::Snapshot(_)) => {}
                Err(error) if matches!(error.kind, ErrorKind::NoRoom { .. }) => break Ok(most),
                other => break Err(anyhow!("{other:?}")),
            }
            most = most.max(helper.pool_status("default")?.promised);
            helper.ask(&delete_snapshot("snap-1"))?;
            rig.eventually(10, || helper.check_status("default", |status| status.emptying == 0))?;
        };
        is_over.store(true, Relaxed);
        writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        taken
    })?;
    ensure!(most <= limit, "{most} bytes were promised of {limit}");
    Ok(())
}

/// The limit on pieces is for what is copied, part of which a tenant may not have written out before.
fn what_was_not_written_out_counts_as_pieces(rig: &mut Rig) -> Result<()> {
    const SIZE: u64 = 16 * MIB;
    rig.add_pool("default")?;
    rig.pools[0].options.push_str(",extents=20");
    let helper = rig.started_helper()?;
    helper.ask(&create("vol-a", image_spec(SIZE)))?;
    publish(&helper, "vol-a")?;
    super::fill(&rig.target("vol-a"), 1, 0, SIZE)?;
    take(&helper, "vol-a", "snap-1")?;
    let device = File::options().write(true).open(rig.target("vol-a"))?;
    for at in 0..40 {
        device.write_all_at(&[2; 4096], at << 17)?;
    }
    let response = helper.request(&create_snapshot("vol-a", "snap-2"))?;
    let Err(error) = response else { bail!("{response:?}") };
    ensure!(matches!(error.kind, ErrorKind::TooFragmented { extents, limit: 20 } if extents > 40), "{error:?}");
    rig.pool().holds(&["snap-1", "vol-a"])
}

/// A pool on a filesystem of so many MiB that mkfs.xfs makes with an option.
fn add_pool_with(rig: &mut Rig, mebibytes: u64, option: [&str; 2]) -> Result<PathBuf> {
    let directory = rig.work().join("pools/default");
    let image = directory.with_extension("disk");
    std::fs::create_dir_all(&directory)?;
    File::create_new(&image)?.set_len(mebibytes << 20)?;
    pool::run(Command::new("mkfs.xfs").arg("-q").args(option).arg(&image))?;
    pool::mount_image(&rig.run_options, &image, &directory)?;
    pool::run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&directory))?;
    rig.pools.push(Pool::mounted(&rig.run_options, &directory, "default"));
    Ok(image)
}

/// The filesystem keeps part of what is added for its own trees. What it needed when it became a pool is less.
fn what_a_pool_that_grew_needs_for_itself_is_not_promised(rig: &mut Rig) -> Result<()> {
    const SIZE: u64 = 100 * MIB;
    let disk = add_pool_with(rig, 512, ["-m", "rmapbt=1"])?;
    let helper = rig.started_helper()?;
    File::options().write(true).open(disk)?.set_len(4096 << 20)?;
    let directory = rig.pool().directory.clone();
    let device = Command::new("findmnt").args(["-n", "-o", "SOURCE"]).arg(&directory).output()?.stdout;
    pool::run(Command::new("losetup").arg("-c").arg(String::from_utf8(device)?.trim()))?;
    pool::run(Command::new("xfs_growfs").arg(&directory))?;
    helper.ask(&create("vol-a", image_spec(SIZE)))?;
    publish(&helper, "vol-a")?;
    super::fill(&rig.target("vol-a"), 1, 0, SIZE)?;
    take(&helper, "vol-a", "snap-1")?;
    let rest = rest(&helper)?;
    ensure!(rest > 2048 * MIB, "{rest}");
    helper.ask(&create("vol-z", image_spec(rest)))?;
    super::fill(&rig.target("vol-a"), 2, 0, SIZE).context("a thick volume is written to")
}

fn a_pool_with_large_blocks_copies_too(rig: &mut Rig) -> Result<()> {
    add_pool_with(rig, 512, ["-b", "size=16384"])?;
    let helper = rig.started_helper()?;
    helper.ask(&create("vol-a", image_spec(4 * MIB + 4096)))?;
    publish(&helper, "vol-a")?;
    super::fill(&rig.target("vol-a"), 1, 0, 4 * MIB + 4096)?;
    take(&helper, "vol-a", "snap-1")?;
    helper.ask(&create_from("vol-b", image_spec(8 * MIB), "snap-1"))?;
    super::check_filled(&rig.pool().image("vol-b"), 1, 0, 4 * MIB + 4096)?;
    super::check_filled(&rig.pool().image("vol-b"), 0, 4 * MIB + 4096, 4 * MIB - 4096)?;
    Ok(())
}
