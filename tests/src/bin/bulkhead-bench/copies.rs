//! Snapshots and copies, by the size and the extents of what is copied: how long each takes, and what a writer of the source
//! waits meanwhile.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use bulkhead_protocol::{Reply, Request};
use bulkhead_tests::bench::report::Unit;
use bulkhead_tests::bench::statistics::Summary;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

use crate::run::Run;

const SECTION: &str = "copies";

/// Sizes in MiB, and how many blocks are written that lie apart; none is all of them in one piece.
const SOURCES: [(u64, Option<u64>); 6] =
    [(64, None), (1024, None), (2048, None), (1024, Some(1000)), (1024, Some(10_000)), (1024, Some(90_000))];

const ID: &str = "vol-copied";
const BLOCK: u64 = 4096;
/// How often each is copied.
const COPIES: usize = 5;

/// A block on its own page, as `O_DIRECT` wants it.
#[repr(align(4096))]
struct Block([u8; BLOCK as usize]);

/// Measures all of them.
pub fn measure(run: &mut Run, rig: &Rig) -> Result<()> {
    for (size, apart) in SOURCES {
        let pieces = apart.map_or_else(|| "in one piece".to_owned(), |apart| format!("{apart} blocks apart"));
        let condition = format!("{size} MiB, {pieces}");
        if run.has_time_for(&format!("copies: {condition}")) {
            one(run, rig, size << 20, apart, &condition)?;
        }
    }
    Ok(())
}

fn one(run: &mut Run, rig: &Rig, size: u64, apart: Option<u64>, condition: &str) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create(ID, image_spec(size)))?;
    write(&rig.pool().volume(ID).join("image"), size, apart).context("write the source")?;
    helper.ask_all([attach(ID), make_device(ID, ID)])?;
    let waits = Mutex::new(Vec::<(Instant, Duration)>::new());
    let is_over = AtomicBool::new(false);
    let (device, mut taken, mut longest) = (rig.target(ID), Vec::new(), Vec::new());
    std::thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| keep_writing(&device, &waits, &is_over));
        let copied = (0..COPIES).try_for_each(|_| -> Result<()> {
            std::thread::sleep(Duration::from_millis(200));
            let begun = Instant::now();
            helper.ask(&create_snapshot(ID, "snap-copied"))?;
            taken.push(begun.elapsed());
            std::thread::sleep(Duration::from_millis(50));
            let waits = waits.lock().map_err(|_| anyhow!("the writer panicked"))?;
            let during = waits.iter().filter(|(at, wait)| *at + *wait >= begun).map(|(_, wait)| *wait);
            longest.push(during.max().unwrap_or_default());
            drop(waits);
            helper.ask(&delete_snapshot("snap-copied")).map(drop)
        });
        is_over.store(true, Ordering::Relaxed);
        writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        copied
    })?;
    run.add(SECTION, "take a snapshot", condition, Unit::Microseconds, Summary::of_times(&taken), None);
    run.add(SECTION, "longest wait of a writer", condition, Unit::Microseconds, Summary::of_times(&longest), None);
    helper.ask(&create_snapshot(ID, "snap-copied"))?;
    let (mut restored, mut told) = (Vec::new(), Vec::new());
    for _ in 0..COPIES {
        let begun = Instant::now();
        helper.ask(&create_from("vol-restored", image_spec(size), "snap-copied"))?;
        restored.push(begun.elapsed());
        helper.ask(&delete("vol-restored"))?;
        let begun = Instant::now();
        read_delta(&helper)?;
        told.push(begun.elapsed());
    }
    run.add(SECTION, "restore it", condition, Unit::Microseconds, Summary::of_times(&restored), None);
    run.add(SECTION, "read what it holds", condition, Unit::Microseconds, Summary::of_times(&told), None);
    helper.ask_all([delete_snapshot("snap-copied"), remove_device(ID, ID), detach(ID), delete(ID)])
}

/// Writes an image as a whole, or every block of some that lie apart.
fn write(image: &Path, size: u64, apart: Option<u64>) -> Result<()> {
    let file = File::options().write(true).open(image)?;
    match apart {
        Some(number) => {
            let step = size / number / BLOCK * BLOCK;
            (0..number).try_for_each(|at| file.write_all_at(&[7; BLOCK as usize], at * step))?;
        }
        None => {
            let part = vec![7; 1 << 20];
            (0..size >> 20).try_for_each(|at| file.write_all_at(&part, at << 20))?;
        }
    }
    Ok(file.sync_all()?)
}

/// Writes one block again and again, each time to the disk, and notes how long each write took.
fn keep_writing(device: &Path, waits: &Mutex<Vec<(Instant, Duration)>>, is_over: &AtomicBool) -> Result<()> {
    let flags = rustix::fs::OFlags::DIRECT | rustix::fs::OFlags::DSYNC;
    let file = File::options().write(true).custom_flags(i32::try_from(flags.bits())?).open(device)?;
    let block = Box::new(Block([1; BLOCK as usize]));
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        file.write_all_at(&block.0, 0)?;
        waits.lock().map_err(|_| anyhow!("the reader panicked"))?.push((begun, begun.elapsed()));
    }
    Ok(())
}

fn read_delta(helper: &HelperClient) -> Result<()> {
    let mut next = Some(0);
    while let Some(from) = next {
        let request = Request::Delta { snapshot: volume("snap-copied"), base: None, from };
        let Reply::Ranges { next: after, .. } = helper.ask(&request)? else { bail!("no ranges") };
        next = after;
    }
    Ok(())
}
