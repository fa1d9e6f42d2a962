//! Another mount covers a publish directory, or the way to it, while volumes are published there.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{ErrorKind, Separation};
use bulkhead_tests::cases;
use bulkhead_tests::daemon::Daemon;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::delete;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use rustix::mount::{UnmountFlags, unmount};

use super::apart::{Other, check_kept, heals, remove_device, reports, unbind};

cases! {
    a_mount_covers_the_way_to_a_publish_directory: Bare,
    a_helper_is_started_while_the_way_to_a_publish_directory_is_covered: Bare,
    a_mount_covers_a_publish_directory: Bare,
}

/// The way back is hidden, and with it all that is published: only what is on top can be unmounted.
fn a_mount_covers_the_way_to_a_publish_directory(rig: &mut Rig) -> Result<()> {
    let other = Other::make(rig)?;
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&other.outer))?;
    let looked = Instant::now();
    while looked.elapsed() < Duration::from_secs(1) {
        rig.running_helper()?.check_alive().context("it ends although nothing is mended")?;
        std::thread::sleep(Duration::from_millis(50));
    }
    reports(rig, Some(Separation::Covered))?;
    other.check_refused(rig, "hides it").context("while it is covered")?;
    let helper = rig.helper()?;
    for request in [unbind("vol-a", "a"), remove_device()] {
        denied(helper.request(&request)?, ErrorKind::InUse, "hides it")?;
    }
    unmount(&other.outer, UnmountFlags::NOFOLLOW)?;
    heals(rig)?;
    check_kept(rig)?;
    other.end(rig)
}

fn a_helper_is_started_while_the_way_to_a_publish_directory_is_covered(rig: &mut Rig) -> Result<()> {
    let other = Other::make(rig)?;
    rig.kill_helper()?;
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=0755", "none"]).arg(&other.outer))?;
    for _ in 0..2 {
        let mut started = Daemon::start("covered", &mut rig.helper_command()?, &rig.logs())?;
        let serves = started.wait_until(rig.patience(Duration::from_secs(5)), || rig.helper().map(drop));
        if serves.is_ok() {
            for id in ["vol-a", "vol-b"] {
                denied(rig.helper()?.request(&delete(id))?, ErrorKind::InUse, "")?;
            }
            started.kill()?;
        } else {
            let status = started.wait(rig.patience(Duration::from_secs(5)))?;
            ensure!(status.code() == Some(1), "it ended with {status}");
        }
        check_kept(rig)?;
    }
    unmount(&other.outer, UnmountFlags::NOFOLLOW)?;
    rig.start_helper()?;
    other.end(rig)
}

/// The other mount becomes shared by itself, so the helper may start anew in it; what is beneath is still known to be in
/// use.
fn a_mount_covers_a_publish_directory(rig: &mut Rig) -> Result<()> {
    let other = Other::make(rig)?;
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=0755", "none"]).arg(&other.inner))?;
    settles(rig)?;
    let helper = rig.helper()?;
    for id in ["vol-a", "vol-b"] {
        denied(helper.request(&delete(id))?, ErrorKind::InUse, "")?;
    }
    check_kept(rig)?;
    // What a start has opened there is closed a moment later.
    let patience = rig.patience(Duration::from_secs(5));
    bulkhead_tests::wait::until(patience, || Ok(unmount(&other.inner, UnmountFlags::NOFOLLOW)?))?;
    settles(rig)?;
    heals(rig)?;
    other.end(rig)
}

/// Gives the helper a second to notice, and starts it anew if it ends.
fn settles(rig: &mut Rig) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < rig.patience(Duration::from_secs(1)) {
        if rig.running_helper()?.check_alive().is_err() {
            rig.await_end_of_helper(Duration::ZERO)?;
            return rig.start_helper();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
