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
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{Pool, mount_image, run};
use bulkhead_tests::setting::program;
use bulkhead_tests::stand::Stand;
use bulkhead_tests::wait;

use crate::cases::attacks::frozen::Frozen;

cases! {
    a_copy_of_a_pool_that_is_read_only_is_not_served: Bare + Host,
    a_copy_of_a_pool_that_is_frozen_is_not_served: Bare + Host,
    a_volume_of_a_pool_that_is_read_only_is_not_served_from_another: Bare + Host,
    one_volume_in_three_pools_is_served_from_none: Bare + Host,
}

const SIZE: u64 = 1 << 20;

/// A pool with vol-a, and a copy of its disk, mounted and configured. The helper does not run.
fn pool_and_copy(stand: &mut Stand) -> Result<(PathBuf, PathBuf)> {
    stand.add_pool("default")?;
    stand.start_helper()?;
    stand.helper()?.ask(&create("vol-a", directory_spec(SIZE)))?;
    stand.kill_helper()?;
    let directory = stand.pool().directory.clone();
    let copied = stand.work().join("pools/copy");
    fs::create_dir(&copied)?;
    wait::until(stand.patience(Duration::from_secs(10)), || mounts::unmount_all(&directory))?;
    let (image, other) = (directory.with_extension("disk"), copied.with_extension("disk"));
    run(Command::new("cp").arg("--sparse=always").args([&image, &other]))?;
    mount_image(&stand.setting, &image, &directory)?;
    mount_image(&stand.setting, &other, &copied)?;
    stand.pools.push(Pool::mounted(&stand.setting, &copied, "copy"));
    Ok((directory, copied))
}

fn check_copy_is_not_served(stand: &Stand) -> Result<()> {
    let helper = stand.helper()?;
    let answers = [
        helper.request(&Request::PoolStatus { pool: "copy".parse()? })?,
        helper.request(&bind("vol-a", "a"))?,
        helper.request(&delete("vol-a"))?,
    ];
    let refused =
        answers.iter().filter(|answer| answer.as_ref().is_err_and(|error| error.kind == ErrorKind::PoolBroken));
    ensure!(refused.count() == 3, "{answers:#?}");
    Ok(())
}

/// Takes the copy away, and what was mounted of it.
fn end(stand: &mut Stand, copied: &Path) -> Result<()> {
    stand.abandon();
    std::thread::sleep(stand.patience(Duration::from_secs(1)));
    mounts::unmount_all(&stand.publish_directory().join("a"))?;
    let _ = fs::remove_dir(stand.target("a"));
    wait::until(stand.patience(Duration::from_secs(10)), || mounts::unmount_all(copied))?;
    stand.pools.truncate(1);
    stand.start_helper()?;
    stand.helper()?.ask(&delete("vol-a")).map(drop)
}

fn a_copy_of_a_pool_that_is_read_only_is_not_served(stand: &mut Stand) -> Result<()> {
    let (directory, copied) = pool_and_copy(stand)?;
    let remount = |how: &str| run(Command::new("mount").args(["-o", how]).arg(&directory));
    remount("remount,ro")?;
    stand.start_helper()?;
    let checked = check_copy_is_not_served(stand);
    remount("remount,rw")?;
    end(stand, &copied)?;
    checked
}

fn a_copy_of_a_pool_that_is_frozen_is_not_served(stand: &mut Stand) -> Result<()> {
    let (directory, copied) = pool_and_copy(stand)?;
    let frozen = Frozen::freeze(&directory)?;
    stand.start_helper()?;
    let checked = check_copy_is_not_served(stand);
    stand.abandon();
    drop(frozen);
    end(stand, &copied)?;
    checked
}

/// The copy was given a marker of its own.
fn a_volume_of_a_pool_that_is_read_only_is_not_served_from_another(stand: &mut Stand) -> Result<()> {
    let (directory, copied) = pool_and_copy(stand)?;
    fs::remove_file(copied.join(".bulkhead"))?;
    run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&copied))?;
    let remount = |how: &str| run(Command::new("mount").args(["-o", how]).arg(&directory));
    remount("remount,ro")?;
    stand.start_helper()?;
    let helper = stand.helper()?;
    let checked = (|| {
        denied(helper.request(&bind("vol-a", "a"))?, ErrorKind::PoolBroken, "").context("publish")?;
        denied(helper.request(&delete("vol-a"))?, ErrorKind::PoolBroken, "").context("delete")
    })();
    remount("remount,rw")?;
    end(stand, &copied)?;
    checked
}

fn one_volume_in_three_pools_is_served_from_none(stand: &mut Stand) -> Result<()> {
    let names = ["default", "second", "third"];
    names.iter().try_for_each(|name| stand.add_pool(name))?;
    stand.start_helper()?;
    stand.helper()?.ask(&create("vol-a", directory_spec(SIZE)))?;
    stand.kill_helper()?;
    let pools: Vec<PathBuf> = stand.pools.iter().map(|pool| pool.directory.clone()).collect();
    for copy in &pools[1..] {
        run(Command::new("cp").args(["-a", "--preserve=all"]).args([pools[0].join("vol-a"), copy.join("vol-a")]))?;
    }
    stand.start_helper()?;
    let helper = stand.helper()?;
    let checked = denied(helper.request(&bind("vol-a", "a"))?, ErrorKind::PoolBroken, "another pool");
    let _ = helper.request(&unbind("vol-a", "a"))?;
    stand.kill_helper()?;
    for copy in &pools[1..] {
        fs::remove_dir_all(copy.join("vol-a"))?;
    }
    stand.start_helper()?;
    stand.helper()?.ask(&delete("vol-a"))?;
    checked
}
