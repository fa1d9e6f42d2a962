//! Random operations of many clients, and kills of every process, checked against a model of what must be true.

mod client;
mod volume;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::observe::processes;
use bulkhead_tests::pool::Pool;
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions};
use rustix::process::Signal;

use self::client::Client;

cases! {
    a_minute_of_operations_and_kills_agrees_with_the_model: Bare + Slow,
    a_hundred_thousand_operations_and_kills_agree_with_the_model: Bare + Long,
}

const CLIENTS: usize = 6;

/// What the clients and the killer tell each other.
#[derive(Default)]
struct Progress {
    operations: AtomicUsize,
    /// Set when the clients are to come to an end.
    over: AtomicBool,
}

fn a_minute_of_operations_and_kills_agrees_with_the_model(rig: &mut Rig) -> Result<()> {
    run(rig, 2_000, Duration::from_secs(45), 1)
}

fn a_hundred_thousand_operations_and_kills_agree_with_the_model(rig: &mut Rig) -> Result<()> {
    run(rig, 100_000, Duration::from_secs(450), 2)
}

/// Lets the clients work for so long. They must do at least so many operations.
fn run(rig: &mut Rig, least: usize, limit: Duration, seed: u64) -> Result<()> {
    for (name, pool_fs) in [("default", PoolFilesystem::Xfs), ("other", PoolFilesystem::Ext4)] {
        let run_options = RunOptions { pool_fs, ..rig.run_options.clone() };
        let directory = rig.work().join("pools").join(name);
        let pool = Pool::make(&run_options, rig.templates(), &directory, name)?;
        rig.pools.push(pool);
    }
    rig.start()?;
    let progress = Progress::default();
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(rig, number, seed)).collect();
    let begun = Instant::now();
    let kills = thread::scope(|scope| -> Result<usize> {
        let workers: Vec<_> = clients.iter_mut().map(|client| scope.spawn(|| client.work(&progress))).collect();
        let kills = kill(rig, &progress, seed, || begun.elapsed() < limit);
        progress.over.store(true, Relaxed);
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        kills
    })?;
    let done = progress.operations.load(Relaxed);
    for client in &mut clients {
        client.undo()?;
    }
    check_empty(rig)?;
    ensure!(done >= least, "only {done} operations in {limit:?}");
    ensure!(kills > 3, "only {kills} kills");
    Ok(())
}

/// Ends processes in all the ways there are, and starts them again, until it is over.
fn kill(rig: &mut Rig, progress: &Progress, seed: u64, goes_on: impl Fn() -> bool) -> Result<usize> {
    let mut random = Random::new(seed);
    let mut kills = 0;
    while goes_on() && !progress.over.load(Relaxed) {
        thread::sleep(Duration::from_millis(200 + random.below(1800) as u64));
        let what = random.below(8);
        let killed = match what {
            0..=3 => rig.restart_helper(),
            4 => rig.stop_helper().and_then(|()| rig.start_helper()),
            5 => kill_an_emptier(rig),
            _ => rig.restart_frontend(),
        };
        killed.with_context(|| format!("kill {kills}, of kind {what}"))?;
        kills += 1;
    }
    Ok(kills)
}

/// The helper ends with any of its emptiers.
fn kill_an_emptier(rig: &mut Rig) -> Result<()> {
    processes::signal(rig.emptier_pid()?, Signal::KILL)?;
    let status = rig.end_of_helper(rig.patience(Duration::from_secs(10)))?;
    ensure!(!status.success(), "the helper ended with {status}");
    rig.start_helper()
}

/// Nothing is promised and nothing is left when all volumes are deleted.
fn check_empty(rig: &Rig) -> Result<()> {
    rig.eventually(30, || {
        for pool in &rig.pools {
            let status = rig.helper()?.pool_status(&pool.name)?;
            ensure!(status.volumes == 0 && status.promised == 0, "pool {}: {status:?}", pool.name);
        }
        Ok(())
    })
}
