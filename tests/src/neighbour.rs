//! Another tenant, beside whom something goes on: how long the lives of its volumes take, compared with what they take alone,
//! in one run.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use crate::bench::percentile;
use crate::helper::{HelperClient, bind, create, delete, directory_spec, unbind};
use crate::rig::Rig;

/// How many lives are measured each time.
const LIVES: usize = 100;
/// How many times longer than alone 99 of 100 of them may take.
const AT_MOST: u32 = 5;
/// What 99 of 100 take at least, to compare with: a turn of another process on the same processor is no delay.
const AT_LEAST: Duration = Duration::from_millis(5);
/// How often it is measured: others may use this machine during one measurement and not during the next.
const TRIES: usize = 6;
const ID: &str = "neighbour";

/// How long lives took.
#[derive(Clone, Copy, Debug)]
pub struct Lives {
    median: Duration,
    late: Duration,
}

impl Lives {
    /// Takes directories in the pool called default through their lives: each is created, published, unpublished and
    /// deleted. None of these may find no place.
    ///
    /// # Errors
    /// When a request is refused.
    pub fn measure(helper: &HelperClient) -> Result<Self> {
        let life = || -> Result<Duration> {
            let begun = Instant::now();
            helper.ask_all([create(ID, directory_spec(1 << 20)), bind(ID, ID), unbind(ID, ID), delete(ID)])?;
            Ok(begun.elapsed())
        };
        let mut took = (0..LIVES).map(|_| life()).collect::<Result<Vec<_>>>()?;
        took.sort();
        Ok(Self { median: percentile(&took, 50), late: percentile(&took, 99) })
    }
}

impl Display for Lives {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "median {:.1?}, 99 of 100 within {:.1?}", self.median, self.late)
    }
}

/// Checks that what `beside` does delays nobody else: it calls the function that it is given while it does it, and undoes it.
///
/// # Errors
/// When all measurements say otherwise, or something fails.
pub fn is_not_delayed(
    rig: &Rig,
    mut beside: impl FnMut(&mut dyn FnMut() -> Result<Lives>) -> Result<Lives>,
) -> Result<()> {
    let helper = rig.helper()?;
    let mut measured = Vec::new();
    for _ in 0..TRIES {
        rig.eventually(60, || is_emptied(rig))?;
        let alone = Lives::measure(&helper)?;
        rig.eventually(60, || is_emptied(rig))?;
        let beside = beside(&mut || Lives::measure(&helper))?;
        if beside.late <= AT_MOST * alone.late.max(AT_LEAST) {
            return Ok(());
        }
        measured.push(format!("alone {alone}; beside {beside}"));
    }
    Err(anyhow!("a neighbour is delayed: {}", measured.join("\n")))
}

/// What is deleted takes room until it is emptied.
fn is_emptied(rig: &Rig) -> Result<()> {
    let deleted = rig.pool().entries()?.into_iter().filter(|name| name.starts_with(".deleted.")).count();
    ensure!(deleted == 0, "{deleted} deleted volumes are not emptied");
    Ok(())
}

/// Calls `measure` while so many clients act again and again, each on a connection of its own.
///
/// # Errors
/// When a client fails, or `measure` does.
pub fn beside_clients(
    rig: &Rig,
    clients: usize,
    act: impl Fn(usize, &HelperClient) -> Result<()> + Sync,
    measure: impl FnOnce() -> Result<Lives>,
) -> Result<Lives> {
    let (stop, acts) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let start = |number: usize| {
            let (client, act, stop, acts) = (rig.helper()?, &act, &stop, &acts);
            Ok(scope.spawn(move || -> Result<()> {
                while !stop.load(Relaxed) {
                    act(number, &client)?;
                    acts.fetch_add(1, Relaxed);
                }
                Ok(())
            }))
        };
        let clients = (0..clients).map(start).collect::<Result<Vec<_>>>();
        let begun = rig.eventually(20, || {
            ensure!(acts.load(Relaxed) > 0, "no client has done anything");
            Ok(())
        });
        let measured = begun.and_then(|()| measure());
        stop.store(true, Relaxed);
        for client in clients? {
            client.join().map_err(|_| anyhow!("a client panicked"))??;
        }
        measured
    })
}
