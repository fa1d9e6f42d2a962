//! Calls, memory and start-up on a node with many published volumes.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_tests::bench::report::{Baseline, Unit};
use bulkhead_tests::bench::statistics::Summary;
use bulkhead_tests::observe::processes;
use bulkhead_tests::rig::Rig;

use crate::calls::LIFE;
use crate::driver::{Call, Connection, Driver, Kind, Volume};
use crate::floor;
use crate::options::Amount;
use crate::run::Run;

const SECTION: &str = "density";

/// Restarts of each process; each takes as long as the others.
const RESTARTS: usize = 5;

/// Measures with each number of volumes of each kind, and then removes the volumes.
pub fn measure(run: &mut Run, rig: &mut Rig, driver: &Driver, amount: &Amount) -> Result<()> {
    let mut filled: Vec<Arc<Vec<Volume>>> = Vec::new();
    let mut published = 0;
    let Some(&least) = amount.volumes.first() else { return Ok(()) };
    for &volumes in &amount.volumes {
        if !run.has_time_for(&format!("density: {volumes} published volumes of each kind")) {
            continue;
        }
        if volumes > published {
            for kind in Kind::ALL {
                let more = driver.volumes(&format!("beside-{volumes}"), kind, volumes - published, true);
                driver.phase(Connection::Kept, 8, &more, Call::Create)?;
                driver.phase(Connection::Kept, 8, &more, Call::Publish)?;
                filled.push(more);
            }
            published = volumes;
        }
        let beside = Beside { condition: condition(volumes), least: condition(least) };
        beside.calls(run, rig, driver, amount.calls)?;
        beside.memory(run, rig)?;
        beside.restarts(run, rig, driver)?;
    }
    if !filled.is_empty() {
        run.tell("density: removing the volumes");
    }
    filled.iter().try_for_each(|volumes| driver.remove(volumes))?;
    wait_for_devices()
}

/// The helper removes the loop devices of this many volumes one after another; killing it would leave them behind.
fn wait_for_devices() -> Result<()> {
    let mut before = usize::MAX;
    loop {
        let devices = fs::read_dir("/sys/block")?.count();
        if devices >= before {
            return Ok(());
        }
        before = devices;
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Measures memory and restarts with volumes that are not published. The volumes stay.
pub fn measure_created(run: &mut Run, rig: &mut Rig, driver: &Driver, number: usize) -> Result<()> {
    if number == 0 || !run.has_time_for(&format!("density: {number} volumes that are not published")) {
        return Ok(());
    }
    let volumes = driver.volumes("created", Kind::Directory, number, true);
    driver.phase(Connection::Kept, 8, &volumes, Call::Create)?;
    let beside = Beside { condition: format!("{number} volumes, not published"), least: condition(0) };
    beside.memory(run, rig)?;
    beside.restarts(run, rig, driver)
}

fn condition(volumes: usize) -> String {
    format!("{volumes} volumes")
}

struct Beside {
    condition: String,
    least: String,
}

impl Beside {
    /// Adds a figure. Its baseline is the same figure with the smallest number of volumes.
    fn add(&self, run: &mut Run, subject: &str, unit: Unit, summary: Summary) {
        let name = &self.least;
        let baseline: Option<Baseline> = run.report.find(SECTION, subject, name).map(|own| own.as_baseline(name));
        run.add(SECTION, subject, &self.condition, unit, summary, baseline);
    }

    fn calls(&self, run: &mut Run, rig: &Rig, driver: &Driver, calls: usize) -> Result<()> {
        let add = |run: &mut Run, subject: &str, summary| self.add(run, subject, Unit::Microseconds, summary);
        // The additional time that the kernel itself needs when there are many mounts.
        let [bound, unmounted] = floor::measure_mounts(&rig.pool().directory, &rig.kubelet.pods(), calls)?;
        add(run, "bind, system calls only", bound);
        add(run, "unmount, system calls only", unmounted);
        let probes = driver.volumes("probe", Kind::Directory, calls, true);
        let probes = driver.phase(Connection::Kept, 1, &probes, Call::Probe)?;
        add(run, "Probe", Summary::of_times(&probes.times));
        for kind in Kind::ALL {
            let volumes = driver.volumes("measured", kind, calls, true);
            for (call, name, _) in LIFE {
                let phase = driver.phase(Connection::Kept, 1, &volumes, call)?;
                if !name.is_empty() {
                    add(run, &format!("{name} {}", kind.name()), Summary::of_times(&phase.times));
                }
            }
        }
        Ok(())
    }

    fn memory(&self, run: &mut Run, rig: &mut Rig) -> Result<()> {
        let helper = rig.running_helper()?.pid();
        let mut emptiers = 0;
        for process in processes::descendants(i32::try_from(helper)?)? {
            emptiers += processes::proportional(u32::try_from(process.pid)?)?;
        }
        let frontend = rig.running_frontend()?.pid();
        let memory = [
            ("PSS of the helper", processes::proportional(helper)?),
            ("PSS of the emptier", emptiers),
            ("PSS of the frontend", processes::proportional(frontend)?),
            ("kernel slab of the machine", slab()?),
        ];
        for (subject, bytes) in memory {
            self.add(run, subject, Unit::Kibibytes, Summary::of(&[bytes as f64 / 1024.0]));
        }
        Ok(())
    }

    /// The time from a kill of each process until it serves again.
    fn restarts(&self, run: &mut Run, rig: &mut Rig, driver: &Driver) -> Result<()> {
        let (mut helper, mut frontend) = (Vec::new(), Vec::new());
        for _ in 0..RESTARTS {
            rig.kill_helper()?;
            let start = Instant::now();
            rig.start_helper()?;
            helper.push(start.elapsed());
            rig.kill_frontend()?;
            let start = Instant::now();
            rig.start_frontend()?;
            frontend.push(start.elapsed());
        }
        self.add(run, "recovery of the helper", Unit::Microseconds, Summary::of_times(&helper));
        self.add(run, "start-up of the frontend", Unit::Microseconds, Summary::of_times(&frontend));
        // The first call re-establishes the kept connection, so it must not be one that is timed.
        let probe = driver.volumes("probe", Kind::Directory, 1, true);
        driver.phase(Connection::Kept, 1, &probe, Call::Probe).map(drop)
    }
}

fn slab() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:")).context("no Slab in /proc/meminfo")?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024)
}
