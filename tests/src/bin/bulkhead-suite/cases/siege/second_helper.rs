//! A second helper beside the first: with the first one's socket, with pools of its own, and with a pool of the first.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, Request};
use bulkhead_tests::another_helper::AnotherHelper;
use bulkhead_tests::cases;
use bulkhead_tests::commands::refusal;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::{HelperClient, bind, create, create_in, delete, directory_spec, unbind};
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::processes;
use bulkhead_tests::pool::Pool;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;

cases! {
    a_second_helper_with_other_pools_takes_no_name_from_the_first: Bare,
    two_helpers_with_pools_of_their_own_serve_beside_each_other: Bare,
    a_pool_is_served_once_another_helper_has_ended: Bare + Slow,
    a_name_that_is_released_makes_no_helper_restart: Bare + Slow,
}

fn a_second_helper_with_other_pools_takes_no_name_from_the_first(rig: &mut Rig) -> Result<()> {
    rig.start()?;
    let inode = |rig: &Rig| -> Result<u64> { Ok(fs::symlink_metadata(rig.helper_socket())?.ino()) };
    let (before, connected) = (inode(rig)?, rig.helper()?);
    connected.ask(&create(own("vol-a"), directory_spec(1 << 20)))?;
    let directory = rig.work().join("pools/other");
    let pool = Pool::make_unmarked(&rig.run_options, rig.templates(), &directory, "other")?;
    let mut command = Command::new(program("bulkhead-privhelper")?);
    command.args(["--pool", &pool.flag(), "--allow-uid", "901", "--socket"]).arg(rig.helper_socket());
    command.arg("--publish-dir").arg(format!("work={}", rig.publish_directory().display()));
    let said = refusal(&mut command)?;
    ensure!(said.contains("another helper listens on") && said.lines().count() == 1, "{said}");
    ensure!(inode(rig)? == before, "the socket is another");
    // The first one answers, on old and new connections.
    for client in [&connected, &HelperClient::welcomed(&rig.helper_socket())?] {
        client.ask_all([bind(own("vol-a"), "a"), unbind(own("vol-a"), "a")])?;
    }
    ensure!(fs::read_dir(&directory)?.all(|entry| entry.is_ok_and(|entry| entry.file_name() != ".bulkhead")));
    bulkhead_tests::observe::mounts::unmount_all(&directory)?;
    connected.ask(&delete(own("vol-a"))).map(drop)
}

fn two_helpers_with_pools_of_their_own_serve_beside_each_other(rig: &mut Rig) -> Result<()> {
    rig.start()?;
    let other = AnotherHelper::start(rig)?;
    let in_other = create_in("other", own("vol-o"), directory_spec(1 << 20));
    other.client()?.ask(&in_other)?;
    rig.helper()?.ask(&create(own("vol-a"), directory_spec(1 << 20)))?;
    rig.restart_helper()?;
    for (client, id) in [(rig.helper()?, own("vol-a")), (other.client()?, own("vol-o"))] {
        client.ask_all([bind(id, id), unbind(id, id), delete(id)])?;
    }
    other.stop()
}

/// The helper that waits serves its other pools meanwhile, and keeps nobody from unmounting the pool.
fn a_pool_is_served_once_another_helper_has_ended(rig: &mut Rig) -> Result<()> {
    let mut other = AnotherHelper::start(rig)?;
    rig.add_pool("default")?;
    rig.pools.push(other.pool.clone());
    let in_other = create_in("other", own("vol-o"), directory_spec(1 << 20));
    let helper = waiting(rig, &in_other)?;
    let opened = (0..100).filter(|_| {
        sleep(Duration::from_millis(50));
        has_open(rig, &other.pool.directory).unwrap_or(true)
    });
    let opened = opened.count();
    ensure!(opened < 5, "the pool was open {opened} times out of a hundred");
    processes::check_children(rig.helper_pid()?)?;
    helper.ask_all([create(own("vol-a"), directory_spec(1 << 20)), delete(own("vol-a"))])?;
    other.kill()?;
    let ended = rig.end_of_helper(rig.patience(Duration::from_secs(10)))?;
    ensure!(ended.success(), "it ended with {ended}");
    rig.started_helper()?.ask_all([in_other, delete(own("vol-o"))])?;
    rig.kill_helper()?;
    rig.pools.pop();
    other.launch()?;
    other.stop()
}

/// Others than root can have the name that a helper takes for a filesystem: nobody waits for that.
fn a_name_that_is_released_makes_no_helper_restart(rig: &mut Rig) -> Result<()> {
    let mut other = AnotherHelper::start(rig)?;
    rig.add_pool("default")?;
    rig.pools.push(Pool::plain(&other.pool.directory.join("beside"), "beside")?);
    let beside = create_in("beside", own("vol-o"), directory_spec(1 << 20));
    let helper = waiting(rig, &beside)?;
    other.kill()?;
    // A helper that waited would have ended by then, and with it this connection.
    sleep(Duration::from_secs(6));
    denied(helper.request(&beside)?, ErrorKind::PoolBroken, "another helper")?;
    rig.restarted_helper()?.ask_all([beside, delete(own("vol-o"))])?;
    rig.kill_helper()?;
    rig.pools.pop();
    other.launch()?;
    other.stop()
}

/// Returns whether the helper or a process of its has something open below a directory.
fn has_open(rig: &Rig, directory: &Path) -> Result<bool> {
    let helper = rig.helper_pid()?;
    let pids = processes::descendants(helper)?.into_iter().map(|process| process.pid);
    for pid in pids.chain([helper]) {
        for descriptor in fs::read_dir(format!("/proc/{pid}/fd"))? {
            if fs::read_link(descriptor?.path()).is_ok_and(|open| open.starts_with(directory)) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Starts the helper, one of whose pools is refused as long as another helper serves.
fn waiting(rig: &mut Rig, refused: &Request) -> Result<HelperClient> {
    let helper = rig.started_helper()?;
    for _ in 0..3 {
        denied(helper.request(refused)?, ErrorKind::PoolBroken, "another helper")?;
        helper.ask_all([create(own("vol-a"), directory_spec(1 << 20)), delete(own("vol-a"))])?;
        sleep(Duration::from_secs(1));
    }
    Ok(helper)
}
