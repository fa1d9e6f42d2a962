//! Tenants whose volumes take the kernel long to copy, all of them at once and without end: everybody else finds a place.

use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::ErrorKind;
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

use super::promises::rewrite_in_pieces;
use super::{end, gone, publish, start};

cases! {
    copies_that_take_long_leave_publishing_its_places: Bare + Xfs,
}

const MIB: u64 = 1 << 20;
const SIZE: u64 = 12 * MIB;
const TENANTS: usize = 16;

/// Publishes and unpublishes a volume so many times, and returns how long each took, the shortest first.
fn publish_often(helper: &HelperClient, times: usize) -> Result<Vec<Duration>> {
    let mut took = Vec::new();
    for _ in 0..times {
        let begun = Instant::now();
        helper.ask_all([bind("vol-o", "o"), unbind("vol-o", "o")])?;
        took.push(begun.elapsed());
    }
    took.sort();
    Ok(took)
}

/// Takes and deletes snapshots of a volume until it is told to stop, and counts them.
fn copy_without_end(helper: &HelperClient, id: &str, stop: &AtomicBool, taken: &AtomicUsize) -> Result<()> {
    let snapshot = format!("snap-{id}");
    while !stop.load(Relaxed) {
        match helper.request(&create_snapshot(id, &snapshot))? {
            Ok(_) => {
                helper.ask_patiently(&delete_snapshot(&snapshot))?;
                taken.fetch_add(1, Relaxed);
            }
            // Like a sidecar that is in a hurry.
            Err(error) if error.kind == ErrorKind::Busy => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => bail!("{error}"),
        }
    }
    Ok(())
}

/// How long it takes to publish and unpublish, alone and beside the copies of others.
struct Measured {
    /// The median.
    half: [Duration; 2],
    /// The 99th of 100.
    most: [Duration; 2],
    copies: usize,
}

impl Measured {
    fn is_good(&self) -> bool {
        self.half[1] <= 5 * self.half[0]
    }
}

impl Display for Measured {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { half, most, copies } = self;
        write!(
            formatter,
            "publishing and unpublishing alone and beside {copies} copies: median {half:?}, 99th of 100 {most:?}"
        )
    }
}

fn measure(rig: &Rig, helper: &HelperClient, ids: &[String]) -> Result<Measured> {
    let alone = publish_often(helper, 100)?;
    let (stop, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
    let beside = std::thread::scope(|scope| {
        let tenants: Vec<_> = ids
            .iter()
            .map(|id| {
                let (client, stop, taken) = (rig.helper()?, &stop, &taken);
                Ok(scope.spawn(move || copy_without_end(&client, id, stop, taken)))
            })
            .collect::<Result<_>>()?;
        let beside = rig
            .eventually(20, || {
                ensure!(taken.load(Relaxed) > TENANTS, "too few copies");
                Ok(())
            })
            .and_then(|()| publish_often(helper, 100).context("beside copies"));
        stop.store(true, Relaxed);
        for tenant in tenants {
            tenant.join().map_err(|_| anyhow::anyhow!("a tenant panicked"))??;
        }
        beside
    })?;
    let at = |hundredth: usize| [&alone, &beside].map(|took| took[took.len() * hundredth / 100]);
    Ok(Measured { half: at(50), most: at(99), copies: taken.load(Relaxed) })
}

fn copies_that_take_long_leave_publishing_its_places(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    helper.ask_all([create("vol-o", directory_spec(MIB)), bind("vol-o", "o"), unbind("vol-o", "o")])?;
    let ids: Vec<String> = (0..TENANTS).map(|number| format!("vol-{number:02}")).collect();
    for id in &ids {
        helper.ask(&create(id, sparse_spec(SIZE)))?;
        publish(&helper, id)?;
        rewrite_in_pieces(rig, id, SIZE, 1)?;
    }
    // Others may use this machine during one measurement and not during the next.
    let mut measured = measure(rig, &helper, &ids)?;
    for _ in 0..2 {
        if measured.is_good() {
            break;
        }
        println!("{measured}");
        measured = measure(rig, &helper, &ids)?;
    }
    ensure!(measured.is_good(), "{measured}");
    for id in &ids {
        end(&helper, id)?;
    }
    helper.ask(&delete("vol-o"))?;
    gone(rig)?;
    rig.pool().holds(&[])
}
