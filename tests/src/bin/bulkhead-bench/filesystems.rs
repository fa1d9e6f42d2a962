//! Filesystems in images beside directories: the calls of a life, what many of them take of memory and of a start, and
//! reading and writing.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use bulkhead_tests::bench::report::{Baseline, Unit};
use bulkhead_tests::bench::statistics::Summary;
use bulkhead_tests::csi::requests::MIB;
use bulkhead_tests::observe::processes;
use bulkhead_tests::rig::{MOUNTER_UID, Rig};

use crate::calls::LIFE;
use crate::data_path;
use crate::driver::{Call, Connection, Driver, Kind, POOL_OF_IMAGES, Volume};
use crate::options::Amount;
use crate::run::Run;

const SECTION: &str = "filesystems";

/// The smallest that there is, and one that must grow when it is first mounted. Neither takes the pool's space: that
/// is for the data.
const SIZES: [i64; 2] = [300 * MIB, 4096 * MIB];

/// Restarts of the helper.
const RESTARTS: usize = 3;

/// More filesystems than are measured.
const LIMIT: &str = "20000";

/// Makes a pool for them, starts the helper anew, and measures.
pub fn measure(run: &mut Run, rig: &mut Rig, driver: &Driver, amount: &Amount) -> Result<()> {
    rig.kill_helper()?;
    rig.add_pool(POOL_OF_IMAGES)?;
    let pool = rig.pools.last_mut().context("the pool was not added")?;
    pool.options.push_str(&format!(",overcommit=1000,filesystems={LIMIT}"));
    let directory = pool.directory.clone();
    rig.helper_flags.extend(["--mounter-uid".to_owned(), MOUNTER_UID.to_string()]);
    rig.start_helper()?;
    rig.await_frontend()?;
    for size in SIZES {
        if run.has_time_for(&format!("filesystems: the life of one of {} MiB", size / MIB)) {
            lives(run, driver, size, amount.calls.min(200))?;
        }
    }
    if run.has_time_for("filesystems: reading and writing") {
        data_path::measure(run, &[Kind::Directory, Kind::Image], &directory, driver, amount.round)?;
    }
    many(run, rig, driver, &amount.filesystems)
}

/// Times each call, one at a time; the baseline is the same call for a directory.
fn lives(run: &mut Run, driver: &Driver, size: i64, number: usize) -> Result<()> {
    let condition = format!("{} MiB", size / MIB);
    let images = driver.volumes_of("life", Kind::Image, number, true, size);
    let directories = driver.volumes_of("life", Kind::Directory, number, true, size);
    for (call, name, _) in LIFE {
        let directory = Summary::of_times(&driver.phase(Connection::Kept, 1, &directories, call)?.times);
        let image = Summary::of_times(&driver.phase(Connection::Kept, 1, &images, call)?.times);
        if name.is_empty() {
            continue;
        }
        let baseline = Baseline {
            name: "directory".to_owned(),
            median: directory.median,
            relative_error: directory.relative_error(),
        };
        run.add(SECTION, name, &condition, Unit::Microseconds, image, Some(baseline));
    }
    Ok(())
}

/// Publishes more and more of them, and measures what they take.
fn many(run: &mut Run, rig: &mut Rig, driver: &Driver, numbers: &[usize]) -> Result<()> {
    let mut filled: Vec<Arc<Vec<Volume>>> = Vec::new();
    let mut published = 0;
    let mut least: Option<Taken> = None;
    for &number in numbers {
        if !run.has_time_for(&format!("filesystems: {number} published ones")) {
            continue;
        }
        let condition = format!("{number} filesystems");
        if let Some(additional) = number.checked_sub(published).filter(|additional| *additional > 0) {
            let more = driver.volumes_of(&format!("beside-{number}"), Kind::Image, additional, true, SIZES[0]);
            driver.phase(Connection::Kept, 8, &more, Call::Create)?;
            let phase = driver.phase(Connection::Kept, 8, &more, Call::Publish)?;
            let rate = additional as f64 / phase.took.as_secs_f64().max(1e-9);
            run.add(
                SECTION,
                "first publications, 8 at a time",
                &condition,
                Unit::PerSecond,
                Summary::of(&[rate]),
                None,
            );
            filled.push(more);
            published = number;
        }
        let taken = Taken::now(rig)?;
        let least = least.get_or_insert_with(|| taken.clone());
        taken.add(run, &condition, least, number);
        let mut recovery = Vec::new();
        for _ in 0..RESTARTS {
            rig.kill_helper()?;
            let start = Instant::now();
            rig.start_helper()?;
            recovery.push(start.elapsed());
        }
        rig.await_frontend()?;
        let recovery = Summary::of_times(&recovery);
        run.add(SECTION, "recovery of the helper", &condition, Unit::Microseconds, recovery, None);
    }
    if !filled.is_empty() {
        run.tell("filesystems: removing the volumes");
    }
    filled.iter().try_for_each(|volumes| driver.remove(volumes))
}

/// What is taken of the machine at one time.
#[derive(Clone)]
struct Taken {
    helper: f64,
    children: f64,
    slab: f64,
    kernel: f64,
    threads: f64,
}

impl Taken {
    fn now(rig: &mut Rig) -> Result<Self> {
        let helper = rig.running_helper()?.pid();
        let mut children = 0;
        for process in processes::descendants(i32::try_from(helper)?)? {
            children += processes::proportional(u32::try_from(process.pid)?)?;
        }
        let memory = Memory::read()?;
        Ok(Self {
            helper: processes::proportional(helper)? as f64 / 1024.0,
            children: children as f64 / 1024.0,
            slab: memory.of("Slab")?,
            kernel: memory.of_the_kernel()?,
            threads: kernel_threads()? as f64,
        })
    }

    /// Adds these figures, and what each filesystem takes on top of the least there were.
    fn add(&self, run: &mut Run, condition: &str, least: &Self, number: usize) {
        let figures = [
            ("PSS of the helper", self.helper, least.helper, Unit::Kibibytes),
            ("PSS of the emptier and the mounter", self.children, least.children, Unit::Kibibytes),
            ("kernel slab of the machine", self.slab, least.slab, Unit::Kibibytes),
            ("memory of the kernel, without its caches", self.kernel, least.kernel, Unit::Kibibytes),
            ("threads of the kernel", self.threads, least.threads, Unit::Number),
        ];
        for (subject, value, least, unit) in figures {
            run.add(SECTION, subject, condition, unit, Summary::of(&[value]), None);
            if number > 0 {
                let each = (value - least) / number as f64;
                run.add(SECTION, &format!("{subject}, for each"), condition, unit, Summary::of(&[each]), None);
            }
        }
    }
}

/// /proc/meminfo, in KiB.
struct Memory(String);

impl Memory {
    fn read() -> Result<Self> {
        Ok(Self(fs::read_to_string("/proc/meminfo")?))
    }

    fn of(&self, name: &str) -> Result<f64> {
        let value = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.with_context(|| format!("no {name} in /proc/meminfo"))?;
        Ok(value.trim().trim_end_matches("kB").trim().parse()?)
    }

    /// Returns what is neither free, nor a process's, nor can be given back on demand. XFS has buffers that are in no
    /// slab.
    fn of_the_kernel(&self) -> Result<f64> {
        let others = ["MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable"];
        others.iter().try_fold(self.of("MemTotal")?, |left, name| Ok(left - self.of(name)?))
    }
}

/// The threads of the kernel are the children of one of them, kthreadd, which is process 2.
fn kernel_threads() -> Result<usize> {
    let mut number = 0;
    for entry in fs::read_dir("/proc")? {
        // A process may be gone by now.
        let Ok(stat) = fs::read_to_string(entry?.path().join("stat")) else { continue };
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        number += usize::from(parent == Some(2));
    }
    Ok(number)
}
