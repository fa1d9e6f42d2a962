//! Filesystems that somebody still uses, or whose pool does not answer.

use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{ErrorKind, Reply, encode};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{mount_image, run};
use bulkhead_tests::rig::Rig;

use super::{SIZE, check_detached, check_image, end, make_pool, start};
use crate::cases::attacks::frozen::Frozen;

cases! {
    what_a_process_still_has_mounted_is_not_let_go: Bare,
    a_frozen_pool_holds_up_its_own_filesystems_only: Bare + Slow,
    a_pool_that_has_shut_down_lets_its_filesystems_go: Bare,
}

/// A process in a published directory, with copies of all mounts of its own, as a container has; it ends with this value.
/// The kernel takes its mount away with the target, but not the directory that it is in.
pub struct Holder(Child);

impl Holder {
    pub fn start(rig: &Rig, target: &str) -> Result<Self> {
        // The mount of the directory that a process is in is copied with all others, and the copy takes its place.
        let arguments = ["--mount", "--propagation", "private", "sleep", "600"];
        let holder = Self(Command::new("unshare").args(arguments).current_dir(rig.target(target)).spawn()?);
        let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt"));
        rig.eventually(10, || {
            let program = fs::read_to_string(format!("/proc/{}/comm", holder.0.id()))?;
            ensure!(namespace(&holder.0.id().to_string())? != namespace("self")? && program.trim() == "sleep");
            Ok(())
        })?;
        Ok(holder)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn what_a_process_still_has_mounted_is_not_let_go(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask_all([
        create(own("vol-a"), filesystem_spec(SIZE)),
        mount_filesystem(own("vol-a")),
        bind(own("vol-a"), "a"),
    ])?;
    fs::write(rig.target("a/file"), "content")?;
    let holder = Holder::start(rig, "a")?;
    helper.ask(&unbind(own("vol-a"), "a"))?;
    // A second device on the image would be a second filesystem that writes there.
    for request in [unmount_filesystem(own("vol-a")), unmount_filesystem(own("vol-a")), delete(own("vol-a"))] {
        denied(helper.request(&request)?, ErrorKind::Busy, own("vol-a")).with_context(|| request.name())?;
    }
    drop(helper);
    let helper = rig.restarted_helper()?;
    denied(helper.request(&delete(own("vol-a")))?, ErrorKind::Busy, own("vol-a")).context("after a restart")?;
    helper.ask_all([mount_filesystem(own("vol-a")), bind(own("vol-a"), "a")])?;
    ensure!(fs::read(rig.target("a/file"))? == b"content");
    helper.ask(&unbind(own("vol-a"), "a"))?;
    drop(holder);
    rig.eventually(20, || helper.ask(&unmount_filesystem(own("vol-a"))).map(drop))?;
    check_detached(rig)?;
    check_image(rig, own("vol-a"))
}

fn check_other(rig: &Rig) -> Result<()> {
    rig.helper()?.check_serves("other")
}

fn a_frozen_pool_holds_up_its_own_filesystems_only(rig: &mut Rig) -> Result<()> {
    make_pool(rig, 3)?;
    rig.add_pool("other")?;
    let helper = rig.started_helper()?;
    helper.ask_all([own("vol-a"), own("vol-b")].map(|id| create(id, filesystem_spec(SIZE))))?;
    helper.ask_all([mount_filesystem(own("vol-a")), bind(own("vol-a"), "a")])?;
    let frozen = Frozen::freeze(&rig.pool().directory)?;
    helper.send(&encode(&mount_filesystem(own("vol-b")))?)?;
    ensure!(!helper.is_answered(rig.patience(Duration::from_secs(3)))?, "it does not wait");
    check_other(rig).context("while the mount waits")?;
    drop(frozen);
    ensure!(helper.is_answered(rig.patience(Duration::from_secs(20)))?, "it still waits");
    drop(helper);
    let helper = rig.helper()?;
    helper.ask_all([
        mount_filesystem(own("vol-b")),
        bind(own("vol-b"), "b"),
        unbind(own("vol-b"), "b"),
        unmount_filesystem(own("vol-b")),
    ])?;
    drop(helper);

    // A start beside it serves the others, and the next one, once it answers, what was published.
    rig.kill_helper()?;
    let frozen = Frozen::freeze(&rig.pool().directory)?;
    rig.start_helper_beside_hung()?;
    check_other(rig).context("after a start")?;
    drop(frozen);
    rig.await_end_of_helper(rig.patience(Duration::from_secs(60)))?;
    let helper = rig.started_helper()?;
    let size = 2 * SIZE;
    ensure!(helper.ask(&grow_filesystem(own("vol-a"), size))? == Reply::Size(bytes(size)));
    helper.ask_all([
        unbind(own("vol-a"), "a"),
        unmount_filesystem(own("vol-a")),
        delete(own("vol-a")),
        delete(own("vol-b")),
    ])?;
    check_detached(rig)
}

fn a_pool_that_has_shut_down_lets_its_filesystems_go(rig: &mut Rig) -> Result<()> {
    start(rig, 3)?;
    let helper = rig.helper()?;
    helper.ask_all([
        create(own("vol-a"), filesystem_spec(SIZE)),
        mount_filesystem(own("vol-a")),
        bind(own("vol-a"), "a"),
    ])?;
    fs::write(rig.target("a/file"), "content")?;
    run(Command::new("sync").arg("-f").arg(rig.target("a/file")))?;
    let directory = rig.pool().directory.clone();
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&directory))?;
    ensure!(
        fs::write(rig.target("a/more"), "content")
            .and_then(|()| fs::File::open(rig.target("a/more"))?.sync_all())
            .is_err()
    );
    for request in [
        unbind(own("vol-a"), "a"),
        unbind(own("vol-a"), "a"),
        unmount_filesystem(own("vol-a")),
        unmount_filesystem(own("vol-a")),
    ] {
        helper.ask(&request).with_context(|| request.name())?;
    }
    ensure!(mounts::below(&rig.publish_directory())?.is_empty());
    drop(helper);
    rig.kill_helper()?;
    rig.eventually(15, || mounts::unmount_all(&directory))?;
    mount_image(&rig.run_options, &directory.with_extension("disk"), &directory)?;
    check_detached(rig)?;
    let helper = rig.started_helper()?;
    helper.ask_all([mount_filesystem(own("vol-a")), bind(own("vol-a"), own("vol-a"))])?;
    ensure!(fs::read(rig.target(own("vol-a")).join("file"))? == b"content");
    end(rig, &helper, &[own("vol-a")])
}
