//! What keeps the volumes of a group frozen, and who ends that.

use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, MountFlags, Request, encode};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::processes;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::Tracer;
use rustix::process::Signal;

use super::{check_nothing_left, check_writable, end, mark, start};
use crate::cases::attacks::frozen::Frozen;
use crate::cases::filesystems::held::Holder;
use crate::cases::filesystems::mounter_of;

cases! {
    one_that_its_pod_has_frozen_fails_the_group_and_stays_frozen: Bare + Xfs,
    a_filesystem_that_only_a_process_still_has_is_frozen_too: Bare + Xfs + Slow,
    a_hold_ends_by_itself: Bare + Xfs + Slow,
    a_helper_killed_while_all_is_frozen_thaws_it_when_it_starts: Bare + Xfs + Slow,
    a_group_is_taken_of_what_its_helper_mounted_before: Bare + Xfs,
}

fn one_that_its_pod_has_frozen_fails_the_group_and_stays_frozen(rig: &mut Rig) -> Result<()> {
    let ids = ["vol-a", "vol-b"];
    let helper = start(rig, &ids)?;
    for frozen_one in ids {
        let frozen = Frozen::freeze(&rig.target(frozen_one))?;
        denied(helper.request(&create_group(&ids, "snap"))?, ErrorKind::Busy, "fsfreeze --unfreeze")?;
        check_writable(rig, ids.into_iter().filter(|id| *id != frozen_one).collect::<Vec<_>>().as_slice())?;
        check_nothing_left(rig, &ids)?;
        let again = Command::new("fsfreeze").arg("--freeze").arg(rig.target(frozen_one)).output()?;
        ensure!(!again.status.success(), "the helper has thawed what a pod has frozen");
        drop(frozen);
    }
    helper.ask(&create_group(&ids, "snap"))?;
    check_writable(rig, &ids)?;
    helper.ask_all(ids.map(|id| delete_snapshot(&format!("{id}-snap"))))?;
    end(rig, &helper, &ids)
}

/// A process with a copy of the mounts can write to it after it was unpublished, and unmounted here.
fn a_filesystem_that_only_a_process_still_has_is_frozen_too(rig: &mut Rig) -> Result<()> {
    let ids = ["vol-a", "vol-b"];
    let helper = start(rig, &ids)?;
    let holder = Holder::start(rig, "vol-a")?;
    helper.ask(&unbind("vol-a", "vol-a"))?;
    denied(helper.request(&unmount_filesystem("vol-a"))?, ErrorKind::Busy, "vol-a")?;
    let group = create_group(&ids, "snap");
    helper.ask(&group)?;
    helper.ask_all(ids.map(|id| delete_snapshot(&format!("{id}-snap"))))?;
    // What takes too long for the one that nobody has published fails for that reason only if that was frozen.
    let delayed = slow_copies(rig)?;
    takes_too_long(rig, &create_group(&["vol-a"], "snap"))?;
    delayed.end()?;
    check_nothing_left(rig, &ids)?;
    check_writable(rig, &["vol-b"])?;
    drop(holder);
    rig.eventually(20, || helper.ask(&unmount_filesystem("vol-a")).map(drop))?;
    helper.ask(&group)?;
    helper.ask_all(ids.map(|id| delete_snapshot(&format!("{id}-snap"))))?;
    helper.ask(&delete("vol-a"))?;
    end(rig, &helper, &["vol-b"])
}

/// The keeper takes longer for the copies than anything is kept frozen.
fn a_hold_ends_by_itself(rig: &mut Rig) -> Result<()> {
    let helper = start(rig, &["vol-a"])?;
    let group = create_group(&["vol-a"], "snap");
    let delayed = slow_copies(rig)?;
    takes_too_long(rig, &group)?;
    delayed.end()?;
    check_writable(rig, &["vol-a"])?;
    check_nothing_left(rig, &["vol-a"])?;
    helper.ask(&group)?;
    helper.ask(&delete_snapshot("vol-a-snap"))?;
    end(rig, &helper, &["vol-a"])
}

/// Checks that a group of vol-a is not taken, as it was frozen for too short a time. A busy machine may not come to freeze it.
fn takes_too_long(rig: &Rig, group: &Request) -> Result<()> {
    let helper = rig.helper()?;
    rig.eventually(60, || denied(helper.request(group)?, ErrorKind::Busy, "vol-a did not stay frozen"))
}

/// Makes the keeper take three seconds for each ioctl(2).
fn slow_copies(rig: &mut Rig) -> Result<Tracer> {
    let inject = "inject=ioctl:delay_enter=3000000";
    let log = rig.work().join("trace");
    Tracer::follow_processes(&[rig.helper_pid()?], &log, &["-e", "trace=ioctl", "-e", inject])
}

fn a_helper_killed_while_all_is_frozen_thaws_it_when_it_starts(rig: &mut Rig) -> Result<()> {
    let helper = start(rig, &["vol-a"])?;
    let group = create_group(&["vol-a"], "snap");
    let delayed = slow_copies(rig)?;
    let waiting = rig.helper()?;
    waiting.send(&encode(&group)?)?;
    rig.eventually(60, || {
        ensure!(&mark(rig, "vol-a")? == b"2", "nothing is about to be frozen yet");
        Ok(())
    })?;
    // With its mounter, and the child that would thaw it.
    let mounter = mounter_of(rig.helper_pid()?)?;
    processes::signal(mounter, Signal::KILL)?;
    processes::signal(rig.helper_pid()?, Signal::KILL)?;
    drop((delayed, waiting, helper));
    rig.end_of_helper(rig.patience(Duration::from_secs(20)))?;
    let helper = rig.started_helper()?;
    rig.eventually(10, || {
        ensure!(&mark(rig, "vol-a")? == b"1", "it may be frozen still");
        Ok(())
    })?;
    check_writable(rig, &["vol-a"])?;
    check_nothing_left(rig, &["vol-a"])?;
    helper.ask(&group)?;
    helper.ask(&delete_snapshot("vol-a-snap"))?;
    end(rig, &helper, &["vol-a"])
}

/// A helper that starts finds them mounted.
fn a_group_is_taken_of_what_its_helper_mounted_before(rig: &mut Rig) -> Result<()> {
    let ids = ["vol-a", "vol-b"];
    drop(start(rig, &ids)?);
    rig.kill_helper()?;
    let helper = rig.started_helper()?;
    helper.ask(&create_group(&ids, "snap"))?;
    check_writable(rig, &ids)?;
    let flags = MountFlags { read_only: true, ..MountFlags::default() };
    let other =
        Request::BindMount { volume: volume("vol-a"), target: target("work", "other"), flags, exclusive: false };
    helper.ask_all([other, unbind("vol-a", "other")])?;
    run(Command::new("sync").arg("-f").arg(rig.target("vol-a")))?;
    helper.ask_all(ids.map(|id| delete_snapshot(&format!("{id}-snap"))))?;
    end(rig, &helper, &ids)
}
