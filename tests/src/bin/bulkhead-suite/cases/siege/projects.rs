//! The owner of a single empty file moves it through very many projects, and XFS keeps a record of each for ever. Nobody
//! else may wait for that.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, Request};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

cases! {
    a_flood_of_projects_delays_nothing: Quota + Xfs + OwnPool,
}

const MIB: u64 = 1 << 20;
/// One that is in use in each block of the quota file makes the kernel read all of these blocks in search of the next.
const STEP: u32 = 30;
/// The first project id for volumes.
const FIRST: u32 = 100_000;
/// What an operation may take beside a flood, as a multiple of what it took before.
const SLOWER: u32 = 4;
/// What an emulated machine may be late with anything.
const SLACK: Duration = Duration::from_millis(300);

/// The slowest of a few volumes' lives and looks at the pool, and of two starts.
fn times(rig: &mut Rig) -> Result<[(&'static str, Duration); 4]> {
    let mut slowest =
        [("create", Duration::ZERO), ("status", Duration::ZERO), ("usage", Duration::ZERO), ("start", Duration::ZERO)];
    for round in 0..10 {
        let helper = rig.helper()?;
        let id = format!("vol-{round}");
        let mut ask = |at: usize, request: &Request| -> Result<()> {
            let begun = Instant::now();
            helper.ask(request)?;
            slowest[at].1 = slowest[at].1.max(begun.elapsed());
            Ok(())
        };
        ask(0, &create(&id, directory_spec(MIB)))?;
        ask(1, &Request::PoolStatus { pool: "default".parse()? })?;
        ask(2, &Request::Usage { volume: volume(&id), target: None })?;
        helper.ask(&delete(&id))?;
    }
    for _ in 0..2 {
        rig.stop_helper()?;
        let begun = Instant::now();
        rig.start_helper()?;
        slowest[3].1 = slowest[3].1.max(begun.elapsed());
    }
    Ok(slowest)
}

fn a_flood_of_projects_delays_nothing(rig: &mut Rig) -> Result<()> {
    rig.helper()?.ask(&create("tenant", directory_spec(MIB)))?;
    let path = rig.pool().volume("tenant").join("data/file");
    File::create_new(&path)?;
    let before = times(rig)?;
    let number = if rig.run_options.long { 20_000 } else { 4_000 };
    let begun = Instant::now();
    let mut tenant =
        Command::new("xfs_io").arg(&path).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().context("run xfs_io")?;
    let commands: String = (1..=number).map(|step| format!("chproj {}\n", FIRST + step * STEP)).collect();
    tenant.stdin.take().context("no input")?.write_all(commands.as_bytes())?;
    ensure!(tenant.wait()?.success(), "xfs_io failed");
    println!("{number} changes of project took {:?}", begun.elapsed());
    let after = times(rig)?;
    for ((what, before), (_, after)) in before.into_iter().zip(after) {
        println!("{what}: {before:?} before, {after:?} after");
        ensure!(after <= before * SLOWER + SLACK, "{what} took {before:?} before, and {after:?} after");
    }
    // What XFS has made for them takes more than a hundredth of this pool.
    let conditions = rig.helper()?.pool_status("default")?.conditions;
    let grown = |condition: &Condition| matches!(condition, Condition::QuotaFiles { bytes } if *bytes > 10 * MIB);
    ensure!(conditions.as_slice().iter().any(grown), "{conditions:?}");
    Ok(())
}
