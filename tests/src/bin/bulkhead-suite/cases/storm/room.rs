//! What is promised, and what there is: no promise is counted twice, and no condition is reported that is not so.

use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, Inodes, Request};
use bulkhead_tests::attacker::retag;
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::quotas;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;

cases! {
    inodes_that_a_volume_was_promised_are_counted_once: OwnPool + Quota + Xfs,
    a_tenant_who_takes_a_thousand_project_ids_stops_no_creation: OwnPool + Quota,
    quotas_that_are_switched_off_and_on_again: OwnPool + Quota + Xfs,
}

const MIB: u64 = 1 << 20;

fn settled() {
    std::thread::sleep(Duration::from_millis(1500));
}

fn inodes_that_a_volume_was_promised_are_counted_once(rig: &mut Rig) -> Result<()> {
    const FILES: u64 = 40_000;
    let helper = rig.helper()?;
    let before = rig.helper()?.pool_status("default")?;
    helper.ask(&create("vol-a", directory_spec_with(16 * MIB, FILES + 100)))?;
    settled();
    // All the rest is promised to another one.
    let rest = rig.helper()?.pool_status("default")?.available.saturating_sub(1024 * 512) / 4096 * 4096;
    helper.ask(&create("vol-b", directory_spec_with(rest, 1024)))?;
    settled();
    let whole = rig.helper()?.pool_status("default")?;
    ensure!(whole.conditions.as_slice().is_empty(), "{whole:?}");
    let data = rig.pool().volume("vol-a").join("data");
    for directory in 0..FILES / 1000 {
        let directory = data.join(directory.to_string());
        fs::create_dir(&directory)?;
        for file in 0..999 {
            File::create(directory.join(file.to_string()))?;
        }
    }
    rig.pool().sync()?;
    settled();
    let after = rig.helper()?.pool_status("default")?;
    println!("empty {before:?}\nwhole {whole:?}\nafter {after:?}");
    let outcome = (|| {
        ensure!(after.conditions.as_slice().is_empty(), "nobody has more than was promised: {after:?}");
        helper.ask(&delete("vol-b"))?;
        rig.eventually(10, || {
            settled();
            let after = rig.helper()?.pool_status("default")?;
            ensure!(after.emptying == 0, "{after:?}");
            ensure!(
                after.available + 4 * MIB > rest,
                "{} were available, and {} are: {after:?}",
                rest,
                after.available
            );
            Ok(())
        })
    })();
    // An emulated processor would take the emptier minutes.
    fs::remove_dir_all(&data)?;
    fs::create_dir(&data)?;
    rig.restart_helper()?;
    outcome
}

/// Which ids are tried next follows from the tenant's own.
fn a_tenant_who_takes_a_thousand_project_ids_stops_no_creation(rig: &mut Rig) -> Result<()> {
    const STRIDE: u64 = 1_456_241;
    const SIZE: u64 = 900_000;
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", directory_spec(16 * MIB)))?;
    let own = quotas::blocks(&rig.pool().directory)?.first().context("no project")?.project;
    let data = rig.pool().volume("vol-a").join("data");
    for step in 0..1000 {
        let id = 100_000 + (u64::from(own) + 1 - 100_000 + step * STRIDE) % SIZE;
        let file = data.join(step.to_string());
        File::create(&file)?;
        retag(&file, id)?;
    }
    let answer = helper.request(&create("vol-b", directory_spec(MIB)))?;
    ensure!(answer.is_ok(), "of 900,000 ids, 1,000 are taken: {answer:?}");
    Ok(())
}

fn quotas_that_are_switched_off_and_on_again(rig: &mut Rig) -> Result<()> {
    let directory = rig.pool().directory.clone();
    let quota = |on: bool| {
        let how = if on { "enable -p" } else { "disable -p" };
        run(Command::new("xfs_quota").args(["-x", "-c", how]).arg(&directory))
    };
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", directory_spec(16 * MIB)))?;
    for round in 0..2 {
        quota(false)?;
        let off = rig.helper()?.pool_status("default")?;
        let answers = [
            helper.request(&create("vol-b", directory_spec(MIB)))?,
            helper.request(&create("vol-c", image_spec(MIB)))?,
            helper.request(&Request::SetQuota {
                volume: volume("vol-a"),
                size: bytes((32 + round) * MIB),
                inodes: Inodes::try_from(8192)?,
            })?,
            helper.request(&delete("vol-c"))?,
            helper.request(&delete("vol-b"))?,
        ];
        quota(true)?;
        println!("off {off:?}\nanswers {answers:?}");
        ensure!(off.conditions.as_slice().contains(&Condition::QuotasOff), "{off:?}");
        rig.eventually(10, || {
            rig.helper()?.check_status("default", |on| on.conditions.as_slice().is_empty() && on.emptying == 0)
        })?;
        let blocks = quotas::blocks(&directory)?;
        println!("on {:?}, {blocks:?}", rig.helper()?.pool_status("default")?);
        let limit = blocks.first().context("no project")?.limit;
        ensure!(blocks.len() == 1 && limit == (32 + round) << 10, "{blocks:?}");
    }
    Ok(())
}
