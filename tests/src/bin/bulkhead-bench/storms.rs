//! Many volumes at once, and calls while a large volume is being emptied.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bulkhead_tests::bench::report::{Baseline, Unit};
use bulkhead_tests::bench::statistics::Summary;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::wait;

use crate::driver::{Call, Connection, Driver, Kind};
use crate::floor::Floor;
use crate::options::Amount;
use crate::run::Run;

const SECTION: &str = "storms";

/// Concurrent calls in a storm.
const IN_FLIGHT: usize = 8;

/// If emptying takes longer than this, it is assumed to have stopped.
const EMPTIED_WITHIN: Duration = Duration::from_secs(1800);

/// At most this many volumes go through their lives while a large one is being emptied.
const MOST_LIVES: usize = 20_000;

/// The calls that are timed while a large volume is being emptied.
const BESIDE: [(Call, &str); 4] =
    [(Call::Create, "create"), (Call::Publish, "publish"), (Call::Unpublish, "unpublish"), (Call::Delete, "delete")];

/// Takes many volumes through their lives, making each call for all of them at once.
pub fn measure(run: &mut Run, driver: &Driver, floor: &Floor, amount: &Amount) -> Result<()> {
    for kind in Kind::ALL {
        let number = amount.storm;
        if number == 0 || !run.has_time_for(&format!("storm: {number} {} volumes", kind.name())) {
            continue;
        }
        let volumes = driver.volumes("storm", kind, number, true);
        let steps = [
            (Call::Create, "create", true),
            (Call::Publish, "publish", true),
            // What a kubelet does after a restart.
            (Call::Publish, "publish again", false),
            (Call::Unpublish, "unpublish", true),
            (Call::Delete, "delete", true),
        ];
        let start = Instant::now();
        for (call, name, changes) in steps {
            let phase = driver.phase(Connection::New, IN_FLIGHT, &volumes, call)?;
            let per_second = number as f64 / phase.took.as_secs_f64().max(1e-9);
            let raw = floor.behind(call, kind, changes);
            // A call that changes nothing has no system calls to compare it with.
            let baseline = (raw.median > 0.0).then(|| Baseline { median: 1e6 / raw.median, ..raw });
            let subject = format!("{name} all, {}", kind.name());
            let condition = format!("{number} volumes, {IN_FLIGHT} in flight");
            run.add(SECTION, &subject, &condition, Unit::PerSecond, Summary::of(&[per_second]), baseline);
        }
        let lives = number as f64 / start.elapsed().as_secs_f64().max(1e-9);
        let condition = format!("{number} volumes, {IN_FLIGHT} in flight");
        run.add(
            SECTION,
            &format!("whole lives, {}", kind.name()),
            &condition,
            Unit::PerSecond,
            Summary::of(&[lives]),
            None,
        );
    }
    Ok(())
}

/// Times the lives of volumes one after another, first alone, then while a volume with many files is being emptied.
pub fn measure_beside_emptying(run: &mut Run, rig: &Rig, driver: &Driver, amount: &Amount) -> Result<()> {
    let files = amount.emptying;
    if files == 0 || !run.has_time_for(&format!("calls while {files} files are removed")) {
        return Ok(());
    }
    let large = driver.volumes("large", Kind::Directory, 1, true);
    driver.phase(Connection::Kept, 1, &large, Call::Create)?;
    fill(rig, files)?;
    wait_until_emptied(rig)?;
    let idle = time_lives(driver, |lives| Ok(lives < amount.calls))?;
    wait_until_emptied(rig)?;
    driver.phase(Connection::Kept, 1, &large, Call::Delete)?;
    let begun = Instant::now();
    let busy = time_lives(driver, |lives| Ok(lives < MOST_LIVES && is_emptying(rig)?))?;
    wait_until_emptied(rig)?;
    let per_second = files as f64 / begun.elapsed().as_secs_f64();
    let condition = format!("{files} files");
    run.add(SECTION, "files removed", &condition, Unit::PerSecond, Summary::of(&[per_second]), None);
    for (((_, name), idle), busy) in BESIDE.iter().zip(idle).zip(busy) {
        let [idle, busy] = [idle, busy].map(|times| Summary::of_times(&times));
        run.add(SECTION, &format!("{name} beside nothing"), "", Unit::Microseconds, idle, None);
        let subject = format!("{name} beside a deletion");
        let median =
            Baseline { name: "beside nothing".to_owned(), median: idle.median, relative_error: idle.relative_error() };
        let late = Baseline { name: "its p99 beside nothing".to_owned(), median: idle.p99, relative_error: 0.1 };
        run.add(SECTION, &subject, &condition, Unit::Microseconds, busy, Some(median));
        let p99 = Summary { median: busy.p99, samples: 1, ..busy };
        run.add(SECTION, &format!("{subject}, p99"), &condition, Unit::Microseconds, p99, Some(late));
    }
    Ok(())
}

fn fill(rig: &Rig, files: usize) -> Result<()> {
    let data = rig.pool().volume("large-directory-0").join("data");
    for number in 0..files {
        let directory = data.join((number / 500).to_string());
        if number % 500 == 0 {
            fs::create_dir(&directory)?;
        }
        File::create(directory.join(number.to_string()))?;
    }
    Ok(rustix::fs::syncfs(File::open(&data)?)?)
}

fn time_lives(driver: &Driver, mut goes_on: impl FnMut(usize) -> Result<bool>) -> Result<[Vec<Duration>; 4]> {
    let mut times = [const { Vec::new() }; 4];
    let mut lives = 0;
    while goes_on(lives)? {
        let volume = driver.volumes("life", Kind::Directory, 1, true);
        for ((call, _), times) in BESIDE.iter().zip(&mut times) {
            times.extend(driver.phase(Connection::Kept, 1, &volume, *call)?.times);
        }
        lives += 1;
    }
    Ok(times)
}

fn is_emptying(rig: &Rig) -> Result<bool> {
    Ok(rig.pool().entries()?.iter().any(|name| name.starts_with('.') && name.ends_with("large-directory-0")))
}

fn wait_until_emptied(rig: &Rig) -> Result<()> {
    wait::until(EMPTIED_WITHIN, || {
        let left = rig.pool().entries()?;
        ensure!(!left.iter().any(|name| name.starts_with('.')), "volumes are still being emptied");
        Ok(())
    })
}
