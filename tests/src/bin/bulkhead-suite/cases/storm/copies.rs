//! A pool and its copy, of which one is unfit for another reason: the other is not served in its place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{ErrorKind, Request};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;

use crate::cases::attacks::frozen::Frozen;
use crate::cases::siege::copies::copy;

cases! {
    a_copy_of_a_pool_that_is_read_only_is_not_served: Bare + Host,
    a_copy_of_a_pool_that_is_frozen_is_not_served: Bare + Host + Slow,
    a_volume_of_a_pool_that_is_read_only_is_not_served_from_another: Bare + Host,
    one_volume_in_three_pools_is_served_from_none: Bare + Host,
}

const SIZE: u64 = 1 << 20;

/// A pool with vol-a, and a copy of its disk, mounted and configured. The helper does not run.
fn pool_and_copy(rig: &mut Rig) -> Result<(PathBuf, PathBuf)> {
    rig.started_helper()?.ask(&create(own("vol-a"), directory_spec(SIZE)))?;
    rig.kill_helper()?;
    let directory = rig.pool().directory.clone();
    Ok((directory, copy(rig)?))
}

fn check_copy_is_not_served(rig: &Rig) -> Result<()> {
    let helper = rig.helper()?;
    let answers = [
        helper.request(&Request::PoolStatus { pool: "copy".parse()? })?,
        helper.request(&bind(own("vol-a"), "a"))?,
        helper.request(&delete(own("vol-a")))?,
    ];
    let refused =
        answers.iter().filter(|answer| answer.as_ref().is_err_and(|error| error.kind == ErrorKind::PoolBroken));
    ensure!(refused.count() == 3, "{answers:#?}");
    Ok(())
}

/// Takes the copy away, and what was mounted of it.
fn end(rig: &mut Rig, copied: &Path) -> Result<()> {
    rig.abandon();
    std::thread::sleep(rig.patience(Duration::from_secs(1)));
    mounts::unmount_all(&rig.publish_directory().join("a"))?;
    let _ = fs::remove_dir(rig.target("a"));
    rig.eventually(10, || mounts::unmount_all(copied))?;
    rig.pools.truncate(1);
    rig.start_helper()
}

fn a_copy_of_a_pool_that_is_read_only_is_not_served(rig: &mut Rig) -> Result<()> {
    let (directory, copied) = pool_and_copy(rig)?;
    let remount = |how: &str| run(Command::new("mount").args(["-o", how]).arg(&directory));
    remount("remount,ro")?;
    rig.start_helper()?;
    let checked = check_copy_is_not_served(rig);
    remount("remount,rw")?;
    end(rig, &copied)?;
    checked
}

fn a_copy_of_a_pool_that_is_frozen_is_not_served(rig: &mut Rig) -> Result<()> {
    let (directory, copied) = pool_and_copy(rig)?;
    let frozen = Frozen::freeze(&directory)?;
    rig.start_helper_beside_hung()?;
    let checked = check_copy_is_not_served(rig);
    rig.abandon();
    drop(frozen);
    end(rig, &copied)?;
    checked
}

/// The copy was given a marker of its own.
fn a_volume_of_a_pool_that_is_read_only_is_not_served_from_another(rig: &mut Rig) -> Result<()> {
    let (directory, copied) = pool_and_copy(rig)?;
    fs::remove_file(copied.join(".bulkhead"))?;
    run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&copied))?;
    let remount = |how: &str| run(Command::new("mount").args(["-o", how]).arg(&directory));
    remount("remount,ro")?;
    let helper = rig.started_helper()?;
    let checked = (|| {
        denied(helper.request(&bind(own("vol-a"), "a"))?, ErrorKind::PoolBroken, "").context("publish")?;
        denied(helper.request(&delete(own("vol-a")))?, ErrorKind::PoolBroken, "").context("delete")
    })();
    remount("remount,rw")?;
    end(rig, &copied)?;
    checked
}

fn one_volume_in_three_pools_is_served_from_none(rig: &mut Rig) -> Result<()> {
    rig.add_pools(["default", "second", "third"])?;
    rig.started_helper()?.ask(&create(own("vol-a"), directory_spec(SIZE)))?;
    rig.kill_helper()?;
    let pools: Vec<PathBuf> = rig.pools.iter().map(|pool| pool.directory.clone()).collect();
    for copy in &pools[1..] {
        run(Command::new("cp")
            .args(["-a", "--preserve=all"])
            .args([pools[0].join(own("vol-a")), copy.join(own("vol-a"))]))?;
    }
    let helper = rig.started_helper()?;
    let checked = denied(helper.request(&bind(own("vol-a"), "a"))?, ErrorKind::PoolBroken, "another pool");
    let _ = helper.request(&unbind(own("vol-a"), "a"))?;
    rig.kill_helper()?;
    for copy in &pools[1..] {
        fs::remove_dir_all(copy.join(own("vol-a")))?;
    }
    rig.start_helper()?;
    checked
}
