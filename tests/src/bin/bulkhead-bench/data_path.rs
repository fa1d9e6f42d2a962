//! Reading and writing with O_DIRECT: a published volume compared with the same bytes in the pool, and a published
//! device also with loop devices of other kinds.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_tests::bench::report::{Baseline, Unit};
use bulkhead_tests::bench::statistics::Summary;
use bulkhead_tests::csi::requests::MIB;
use bulkhead_tests::observe::loops;
use bulkhead_tests::pool::output;
use bulkhead_tests::random::Random;
use rustix::fs::{FallocateFlags, Mode, OFlags};

use crate::driver::{Call, Connection, Driver, Kind};
use crate::run::Run;

const SECTION: &str = "data path";

/// How much data is read and written.
const SIZE: u64 = 128 << 20;

/// Concurrent requests, each from its own thread.
const QUEUE_DEPTH: usize = 32;

/// Rounds of each kind. Raw and published alternate, so that disturbances affect both alike.
const ROUNDS: usize = 5;

/// The alignment that O_DIRECT requires of a buffer.
const ALIGNMENT: usize = 4096;

/// The bench's own loop devices: name, whether they use direct I/O, and logical block size.
const LOOP_DEVICES: [(&str, bool, u32); 4] = [
    ("loop device, direct, 512", true, 512),
    ("loop device, direct, 4096", true, 4096),
    ("loop device, buffered, 512", false, 512),
    ("loop device, buffered, 4096", false, 4096),
];

#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    block: usize,
    access: Access,
    random: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Reads,
    Writes,
    /// Writes, each of which is followed by an fdatasync(2).
    SyncedWrites,
}

const LOADS: [Load; 5] = [
    Load { name: "4 KiB random read", block: 4096, access: Access::Reads, random: true },
    Load { name: "4 KiB random write", block: 4096, access: Access::Writes, random: true },
    Load { name: "4 KiB synced random write", block: 4096, access: Access::SyncedWrites, random: true },
    Load { name: "1 MiB sequential read", block: 1 << 20, access: Access::Reads, random: false },
    Load { name: "1 MiB sequential write", block: 1 << 20, access: Access::Writes, random: false },
];

/// Measures volumes of some kinds, in a pool.
pub fn measure(run: &mut Run, kinds: &[Kind], pool: &Path, driver: &Driver, round: Duration) -> Result<()> {
    for &kind in kinds {
        let size = if kind == Kind::Image { 4 * SIZE } else { SIZE };
        let volumes = driver.volumes_of("data", kind, 1, false, i64::try_from(size)?);
        driver.phase(Connection::Kept, 1, &volumes, Call::Create)?;
        driver.phase(Connection::Kept, 1, &volumes, Call::Publish)?;
        let raw = pool.join(".raw");
        let target = &volumes[0].target;
        let measured = match kind {
            Kind::Directory | Kind::Image => {
                let others = [("published", prepare(&target.join("file"))?)];
                compare(run, kind, &raw, "a file in the pool", &others, round)
            }
            Kind::Block => compare_devices(run, &raw, target, round),
        };
        fs::remove_file(&raw).context("remove the raw file")?;
        driver.remove(&volumes)?;
        measured?;
    }
    Ok(())
}

/// Compares a published device with the loop devices it could have been, each with its own file.
fn compare_devices(run: &mut Run, raw: &Path, published: &Path, round: Duration) -> Result<()> {
    let mut devices = Vec::new();
    let mut others = vec![("published", prepare(published)?)];
    for (name, direct, block_size) in LOOP_DEVICES {
        let device = Attached::to(&raw.with_extension(format!("{direct}-{block_size}")), direct, block_size)?;
        others.push((name, prepare(&device.path)?));
        devices.push(device);
    }
    compare(run, Kind::Block, raw, "the raw image file", &others, round)
}

fn compare(
    run: &mut Run,
    kind: Kind,
    raw: &Path,
    against: &str,
    others: &[(&str, File)],
    round: Duration,
) -> Result<()> {
    let raw = prepare(raw)?;
    for load in LOADS {
        let subject = format!("{}, {}", load.name, kind.name());
        if !run.has_time_for(&format!("data path: {subject}")) {
            continue;
        }
        let mut rates = vec![Vec::new(); 1 + others.len()];
        for _ in 0..ROUNDS {
            let files = std::iter::once(&raw).chain(others.iter().map(|(_, file)| file));
            for (file, rates) in files.zip(&mut rates) {
                rates.push(rate(file, load, round)?);
            }
        }
        let unit = if load.random { Unit::PerSecond } else { Unit::MebibytesPerSecond };
        let floor = Summary::of(&rates[0]);
        run.add(SECTION, &subject, "raw", unit, floor, None);
        for ((name, _), rates) in others.iter().zip(&rates[1..]) {
            let (name, median) = (*name, floor.median);
            let baseline = Baseline { name: against.to_owned(), median, relative_error: floor.relative_error() };
            run.add(SECTION, &subject, name, unit, Summary::of(rates), Some(baseline));
        }
    }
    Ok(())
}

/// A loop device of the bench's own, which is removed together with its image.
struct Attached {
    path: PathBuf,
    image: PathBuf,
}

impl Attached {
    fn to(image: &Path, direct: bool, block_size: u32) -> Result<Self> {
        // Like an image: allocated, with nothing written to it.
        rustix::fs::fallocate(File::create_new(image)?, FallocateFlags::empty(), 0, SIZE)?;
        let mut command = Command::new("losetup");
        command.arg(format!("--direct-io={}", if direct { "on" } else { "off" }));
        command.args(["--find", "--show", "--sector-size", &block_size.to_string()]).arg(image);
        Ok(Self { path: output(&mut command)?.into(), image: image.to_owned() })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // Removing the pool also finds what is left behind here.
        let _ = loops::detach(&self.path);
        let _ = fs::remove_file(&self.image);
    }
}

/// Opens a file or a device with O_DIRECT, and writes all of it, so that no block is allocated later.
fn prepare(path: &Path) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
    let file = File::from(file.with_context(|| format!("open {} with O_DIRECT", path.display()))?);
    let mut buffer = Buffer::new(1 << 20);
    for offset in (0..SIZE).step_by(1 << 20) {
        file.write_all_at(buffer.bytes(), offset)?;
    }
    file.sync_all()?;
    Ok(file)
}

/// Requests or mebibytes per second.
fn rate(file: &File, load: Load, round: Duration) -> Result<f64> {
    let blocks = SIZE / load.block as u64;
    let done = Mutex::new(0_u64);
    let start = Instant::now();
    std::thread::scope(|threads| {
        let workers: Vec<_> = (0..QUEUE_DEPTH)
            .map(|number| {
                let done = &done;
                threads.spawn(move || -> Result<()> {
                    let mut random = Random::new(number as u64 + 1);
                    let mut buffer = Buffer::new(load.block);
                    let mut own = 0;
                    let mut block = number as u64;
                    while start.elapsed() < round {
                        let next = if load.random { random.below(blocks as usize) as u64 } else { block % blocks };
                        block += QUEUE_DEPTH as u64;
                        let offset = next * load.block as u64;
                        match load.access {
                            Access::Reads => file.read_exact_at(buffer.bytes(), offset)?,
                            Access::Writes | Access::SyncedWrites => file.write_all_at(buffer.bytes(), offset)?,
                        }
                        if load.access == Access::SyncedWrites {
                            file.sync_data()?;
                        }
                        own += 1;
                    }
                    *done.lock().map_err(|_| anyhow!("another thread panicked"))? += own;
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| anyhow!("a thread panicked"))?)
    })?;
    let requests = *done.lock().map_err(|_| anyhow!("a thread panicked"))? as f64 / start.elapsed().as_secs_f64();
    ensure!(requests > 0.0, "nothing was read or written");
    Ok(if load.random { requests } else { requests * load.block as f64 / MIB as f64 })
}

/// Memory at an address that O_DIRECT accepts.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Buffer {
    fn new(length: usize) -> Self {
        let memory = vec![0x5a; length + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start, length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}
