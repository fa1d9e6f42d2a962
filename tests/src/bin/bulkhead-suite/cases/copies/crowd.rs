//! Tenants whose volumes take the kernel long to copy, all of them at once and without end: everybody else finds a place.

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

fn copies_that_take_long_leave_publishing_its_places(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    helper.ask_all([create("vol-o", directory_spec(MIB)), bind("vol-o", "o"), unbind("vol-o", "o")])?;
    let ids: Vec<String> = (0..TENANTS).map(|number| format!("vol-{number:02}")).collect();
    for id in &ids {
        helper.ask(&create(id, sparse_spec(SIZE)))?;
        publish(&helper, id)?;
        rewrite_in_pieces(rig, id, SIZE, 1)?;
    }
    let alone = publish_often(&helper, 100)?;
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
            .and_then(|()| publish_often(&helper, 100).context("beside copies"));
        stop.store(true, Relaxed);
        for tenant in tenants {
            tenant.join().map_err(|_| anyhow::anyhow!("a tenant panicked"))??;
        }
        beside
    })?;
    let at = |took: &[Duration], hundredth: usize| took[took.len() * hundredth / 100];
    let (half, most) = ([at(&alone, 50), at(&beside, 50)], [at(&alone, 99), at(&beside, 99)]);
    let figures = format!(
        "publishing and unpublishing alone and beside {} copies: median {half:?}, 99th of 100 {most:?}",
        taken.load(Relaxed)
    );
    ensure!(half[1] <= 5 * half[0], "{figures}");
    for id in &ids {
        end(&helper, id)?;
    }
    helper.ask(&delete("vol-o"))?;
    gone(rig)?;
    rig.pool().holds(&[])
}
