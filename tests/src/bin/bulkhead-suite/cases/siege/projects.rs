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
    a_flood_of_projects_delays_nothing: Quota + Xfs + OwnPool + Alone("it measures times"),
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

/// The median times of a few volumes' lives and looks at the pool, and of a few starts: what is late now and then is late
/// because of the machine.
fn times(rig: &mut Rig) -> Result<[(&'static str, Duration); 4]> {
    let mut times = ["create", "status", "usage", "start"].map(|what| (what, Vec::new()));
    let mut timed = |at: usize, act: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        let begun = Instant::now();
        act()?;
        times[at].1.push(begun.elapsed());
        Ok(())
    };
    for round in 0..11 {
        let (helper, id) = (rig.helper()?, format!("vol-{round}"));
        let ask = |request: Request| helper.ask(&request).map(drop);
        timed(0, &mut || ask(create(&id, directory_spec(MIB))))?;
        timed(1, &mut || ask(Request::PoolStatus { pool: "default".parse()? }))?;
        timed(2, &mut || ask(Request::Usage { volume: volume(&id), target: None }))?;
        ask(delete(&id))?;
    }
    for _ in 0..3 {
        rig.stop_helper()?;
        timed(3, &mut || rig.start_helper())?;
    }
    Ok(times.map(|(what, mut taken)| {
        taken.sort_unstable();
        (what, taken[taken.len() / 2])
    }))
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
