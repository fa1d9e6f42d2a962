//! A pool and its copy are both there: which is which cannot be told, so neither is served, and no volume is made twice.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, Request};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{Pool, mount_image, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;

cases! {
    a_pool_and_its_copy_are_both_refused: Bare + Host,
    one_volume_in_two_pools_is_served_from_neither: Bare + Host,
    a_volume_of_a_pool_that_has_become_read_only_is_not_made_again: Bare,
    a_volume_of_a_pool_of_another_name_is_not_made_again: Bare,
}

const SIZE: u64 = 1 << 20;

fn status(rig: &Rig, pool: &str) -> Result<bulkhead_protocol::Response> {
    rig.helper()?.request(&Request::PoolStatus { pool: pool.parse()? })
}

/// Starts a helper with an unnamed pool called default and one called third, and makes vol-a in the former, with
/// content. The helper is then killed.
fn prepare(rig: &mut Rig) -> Result<PathBuf> {
    rig.add_pools(["default", "third"])?;
    rig.started_helper()?.ask(&create(own("vol-a"), directory_spec(SIZE)))?;
    let directory = rig.pool().directory.clone();
    fs::write(directory.join(own("vol-a")).join("data/file"), "content")?;
    // What is left of a helper that was killed may keep the filesystem mounted for a moment, and what is written in memory.
    run(Command::new("sync").arg("--file-system").arg(&directory))?;
    rig.kill_helper()?;
    Ok(directory)
}

/// Makes a copy of the disk of the pool called default, mounts it, and configures it as another pool. The helper does not
/// run.
pub fn copy(rig: &mut Rig) -> Result<PathBuf> {
    let directory = rig.pool().directory.clone();
    let copied = rig.work().join("pools/copy");
    fs::create_dir(&copied)?;
    rig.eventually(10, || mounts::unmount_all(&directory))?;
    let (image, other) = (directory.with_extension("disk"), copied.with_extension("disk"));
    run(Command::new("cp").arg("--sparse=always").args([&image, &other]))?;
    mount_image(&rig.run_options, &image, &directory)?;
    mount_image(&rig.run_options, &other, &copied)?;
    rig.pools.push(Pool::mounted(&rig.run_options, &copied, "copy"));
    Ok(copied)
}

fn check_content(pools: &[&Path]) -> Result<()> {
    for pool in pools {
        ensure!(
            fs::read(pool.join(own("vol-a")).join("data/file"))? == b"content",
            "{} has lost its content",
            pool.display()
        );
    }
    Ok(())
}

/// Checks that vol-a is neither made, nor published, nor deleted.
fn check_untouched(rig: &Rig, part: &str) -> Result<()> {
    let helper = rig.helper()?;
    for pool in ["default", "third"] {
        denied(helper.request(&create_in(pool, own("vol-a"), directory_spec(SIZE)))?, ErrorKind::PoolBroken, part)?;
    }
    for request in [bind(own("vol-a"), "a"), delete(own("vol-a")), discard(own("vol-a"))] {
        denied(helper.request(&request)?, ErrorKind::PoolBroken, part)?;
    }
    ensure!(rig.helper()?.volumes()?.is_empty(), "{:?}", rig.helper()?.volumes()?);
    ensure!(rig.pools[1].entries()?.is_empty(), "it was made again: {:?}", rig.pools[1].entries()?);
    Ok(())
}

fn a_pool_and_its_copy_are_both_refused(rig: &mut Rig) -> Result<()> {
    let directory = prepare(rig)?;
    let copied = copy(rig)?;
    rig.start_helper()?;
    for pool in ["default", "copy"] {
        denied(status(rig, pool)?, ErrorKind::PoolBroken, "same uuid")?;
    }
    check_untouched(rig, "same uuid")?;
    check_content(&[&directory, &copied])?;
    // The third one is served.
    rig.helper()?.check_serves("third")?;
    // Without the copy all is as it was.
    rig.kill_helper()?;
    mounts::unmount_all(&copied)?;
    rig.pools.truncate(2);
    rig.start_helper()?;
    ensure!(rig.helper()?.volumes()? == [volume(own("vol-a"))]);
    check_content(&[&directory])
}

fn one_volume_in_two_pools_is_served_from_neither(rig: &mut Rig) -> Result<()> {
    let directory = prepare(rig)?;
    let copied = copy(rig)?;
    fs::remove_file(copied.join(".bulkhead"))?;
    run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&copied))?;
    for _ in 0..2 {
        rig.start_helper()?;
        check_untouched(rig, own("vol-a"))?;
        check_content(&[&directory, &copied])?;
        rig.kill_helper()?;
    }
    fs::remove_dir_all(copied.join(own("vol-a")))?;
    rig.start_helper()?;
    ensure!(rig.helper()?.volumes()? == [volume(own("vol-a"))]);
    check_content(&[&directory])
}

fn a_volume_of_a_pool_that_has_become_read_only_is_not_made_again(rig: &mut Rig) -> Result<()> {
    let directory = prepare(rig)?;
    let remount = |how: &str| run(Command::new("mount").args(["-o", how]).arg(&directory));
    remount("remount,ro")?;
    rig.start_helper()?;
    denied(status(rig, "default")?, ErrorKind::PoolBroken, "read-only")?;
    check_untouched(rig, "")?;
    check_content(&[&directory])?;
    rig.abandon();
    remount("remount,rw")?;
    rig.start_helper()?;
    ensure!(rig.helper()?.volumes()? == [volume(own("vol-a"))]);
    Ok(())
}

fn a_volume_of_a_pool_of_another_name_is_not_made_again(rig: &mut Rig) -> Result<()> {
    let directory = prepare(rig)?;
    let marker = directory.join(".bulkhead");
    let unnamed = fs::read(&marker)?;
    fs::write(&marker, [&unnamed[..], b"name fast\n"].concat())?;
    rig.start_helper()?;
    denied(status(rig, "default")?, ErrorKind::PoolBroken, "fast")?;
    check_untouched(rig, "")?;
    check_content(&[&directory])?;
    rig.kill_helper()?;
    fs::write(&marker, unnamed)?;
    rig.start_helper()?;
    ensure!(rig.helper()?.volumes()? == [volume(own("vol-a"))]);
    Ok(())
}
