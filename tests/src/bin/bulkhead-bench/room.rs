//! What snapshots take: of what a pool may promise, and of its disk, when they are fresh and when their source has been
//! rewritten since each of them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::Request;
use bulkhead_tests::bench::report::Unit;
use bulkhead_tests::bench::statistics::Summary;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::Pool;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::RunOptions;
use bulkhead_tests::wait;

use crate::run::Run;

const SECTION: &str = "room of snapshots";
const NAME: &str = "room";
/// Of the pool, whose disk is a file that takes only what is written.
const POOL_MEBIBYTES: u64 = 40 << 10;
/// The sizes of the volumes, in MiB.
const VOLUMES: [u64; 2] = [1 << 10, 20 << 10];
/// How much of each is written, and rewritten, in MiB: with all of it, ten snapshots would not fit on most hosts.
const WRITTEN: u64 = 256;
const ID: &str = "vol-copied";
/// How many snapshots there are in the end.
const SNAPSHOTS: usize = 10;

/// Measures volumes of all sizes, each in a pool of its own.
pub fn measure(run: &mut Run, rig: &mut Rig) -> Result<()> {
    for size in VOLUMES {
        let volume = format!("{} GiB, {WRITTEN} MiB written", size >> 10);
        if run.has_time_for(&format!("room of snapshots: {volume}")) {
            let directory = rig.work().join("pools").join(NAME);
            rig.kill_helper()?;
            let run_options = RunOptions { pool_mebibytes: POOL_MEBIBYTES, ..rig.run_options.clone() };
            rig.pools.push(Pool::make(&run_options, rig.templates(), &directory, NAME)?);
            rig.start_helper()?;
            let measured = one(run, rig, size << 20, &volume);
            rig.kill_helper()?;
            rig.pools.pop();
            // What is left of the helper may still be in it.
            wait::until(Duration::from_secs(10), || mounts::unmount_all(&directory))?;
            fs::remove_file(directory.with_extension("disk"))?;
            rig.start_helper()?;
            rig.await_frontend()?;
            measured?;
        }
    }
    Ok(())
}

fn one(run: &mut Run, rig: &Rig, size: u64, volume_is: &str) -> Result<()> {
    let helper = rig.helper()?;
    let before = Taken::now(rig, &helper)?;
    before.add(run, &format!("{volume_is}: before it"), &before);
    helper.ask(&Request::Create { volume: volume(ID), pool: NAME.parse()?, spec: image_spec(size) })?;
    write(rig, 1)?;
    Taken::now(rig, &helper)?.add(run, &format!("{volume_is}: 0 snapshots"), &before);
    for is_rewritten in [false, true] {
        for number in 1..=SNAPSHOTS {
            helper.ask(&create_snapshot(ID, &format!("snap-{number:02}")))?;
            if is_rewritten {
                write(rig, u8::try_from(number + 1)?)?;
            }
            if number == 1 || number == SNAPSHOTS {
                let state = if is_rewritten { "rewritten after each" } else { "fresh" };
                let condition = format!("{volume_is}: {number} snapshots, {state}");
                Taken::now(rig, &helper)?.add(run, &condition, &before);
            }
        }
        for number in 1..=SNAPSHOTS {
            helper.ask(&delete_snapshot(&format!("snap-{number:02}")))?;
        }
    }
    helper.ask(&delete(ID)).map(drop)
}

/// Writes what is written of the volume.
fn write(rig: &Rig, byte: u8) -> Result<()> {
    let pool = rig.pools.last().context("no pool")?;
    let image = File::options().write(true).open(pool.volume(ID).join("image"))?;
    let part = vec![byte; 1 << 20];
    (0..WRITTEN).try_for_each(|at| image.write_all_at(&part, at << 20))?;
    Ok(image.sync_all()?)
}

/// What is taken of a pool, in bytes.
struct Taken {
    promised: u64,
    in_use: u64,
    room: u64,
}

impl Taken {
    fn now(rig: &Rig, helper: &HelperClient) -> Result<Self> {
        wait::until(Duration::from_secs(60), || {
            ensure!(helper.pool_status(NAME)?.emptying == 0, "snapshots are being removed");
            Ok(())
        })?;
        // The pool measures itself once a second at most.
        std::thread::sleep(Duration::from_millis(1100));
        let status = helper.pool_status(NAME)?;
        let space = rustix::fs::statvfs(&rig.pools.last().context("no pool")?.directory)?;
        let in_use = (space.f_blocks - space.f_bfree) * space.f_frsize;
        Ok(Self { promised: status.promised, in_use, room: status.available })
    }

    /// Adds these figures; what was in use before there was a volume is not its own.
    fn add(&self, run: &mut Run, condition: &str, before: &Self) {
        let figures = [
            ("promised", self.promised),
            ("allocated on the disk", self.in_use.saturating_sub(before.in_use)),
            ("room left to promise", self.room),
        ];
        for (subject, bytes) in figures {
            let kibibytes = Summary::of(&[bytes as f64 / 1024.0]);
            run.add(SECTION, subject, condition, Unit::Kibibytes, kibibytes, None);
        }
    }
}
