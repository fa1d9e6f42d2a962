//! Faults at the system calls of the helper's start, while volumes are published.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_tests::daemon::Daemon;
use bulkhead_tests::helper::{HelperClient, delete};
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pace::Allowance;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::{self, Call, Fault, calls, was_injected};

use super::operations::{DEVICE, DIRECTORY, FILESYSTEM, device_life, directory_life, filesystem_life, prepare};
use super::points::{Extent, Tally, can_fail, emptied, is_steady};

/// How a start under strace ended.
enum Started {
    Serves,
    Ended(ExitStatus),
}

/// Kills the helper at calls of its start. The next start succeeds, both volumes are still published, and whatever was
/// half created or half deleted is gone.
pub fn kill(rig: &mut Rig, extent: Extent) -> Result<()> {
    let points = begin(rig)?.into_iter().filter(is_steady).map(|call| (call, Fault::Kill)).collect();
    let points = extent.of(rig, points);
    each(rig, points)
}

/// Makes calls of the start fail, each with one error at a time. The start is refused with a clear message, or succeeds
/// and knows what is published; the next start succeeds.
pub fn error(rig: &mut Rig, errors: &[&'static str], extent: Extent) -> Result<()> {
    rig.helper_flags.push("--seccomp=log".to_owned());
    let points = begin(rig)?.into_iter().filter(can_fail);
    let points = points.flat_map(|call| errors.iter().map(move |error| (call.clone(), Fault::Error(error)))).collect();
    let points = extent.of(rig, points);
    each(rig, points)
}

fn each(rig: &mut Rig, points: Vec<(Call, Fault)>) -> Result<()> {
    let mut tally = Tally::default();
    for (call, fault) in points {
        let outcome = start_with(rig, &call, fault);
        if !tally.add(&format!("start, {fault} at {call}"), &outcome) {
            break;
        }
        if outcome.is_err() {
            clear(rig)?;
            publish(rig)?;
        }
    }
    rig.start_helper()?;
    let [_, _, _, unbind, delete] = directory_life();
    let [_, _, _, _, _, remove, detach, delete_device] = device_life();
    rig.helper()?.ask_all([unbind, delete, remove, detach, delete_device])?;
    if has_filesystems(rig) {
        let [.., unbind, unmount, delete] = filesystem_life();
        rig.helper()?.ask_all([unbind, unmount, delete])?;
    }
    tally.judge()
}

/// Returns whether the pool is configured for filesystems in images: then one is published as well.
fn has_filesystems(rig: &Rig) -> bool {
    rig.pool().options.contains("filesystems")
}

/// The volumes that are published.
fn published(rig: &Rig) -> Vec<&'static str> {
    let third = has_filesystems(rig).then_some(*FILESYSTEM);
    [*DIRECTORY, *DEVICE].into_iter().chain(third).collect()
}

/// Publishes the volumes, and returns the calls of a start.
fn begin(rig: &mut Rig) -> Result<Vec<Call>> {
    if rig.pools.is_empty() {
        rig.add_pool("default")?;
    }
    prepare(rig)?;
    publish(rig)?;
    leave_traces(rig)?;
    let mut helper = Daemon::start("helper", &mut traced(rig, None)?, &rig.logs())?;
    ensure!(matches!(wait(rig, &mut helper)?, Started::Serves), "the start that is followed does not come to serve");
    helper.kill()?;
    Ok(calls(&fs::read_to_string(rig.work().join("trace"))?))
}

/// Publishes the volumes, and stops the helper.
fn publish(rig: &mut Rig) -> Result<()> {
    rig.start_helper()?;
    let [create, bind, ..] = directory_life();
    let [create_device, attach, make, ..] = device_life();
    rig.helper()?.ask_all([create, bind, create_device, attach, make])?;
    if has_filesystems(rig) {
        let [create, mount, bind, ..] = filesystem_life();
        rig.helper()?.ask_all([create, mount, bind])?;
    }
    fs::write(rig.pool().volume(&DIRECTORY).join("data/file"), "precious")?;
    rig.kill_helper()
}

/// Removes by hand what is left after a start that has lost something.
fn clear(rig: &mut Rig) -> Result<()> {
    rig.abandon();
    mounts::unmount_all(rig.kubelet.root())?;
    mounts::unmount_all(&rig.publish_directory())?;
    loops::backed_by(&rig.pool().device()?)?.iter().try_for_each(|device| loops::detach(&device.path))?;
    rig.start_helper()?;
    for id in published(rig) {
        rig.helper()?.ask(&delete(id))?;
    }
    for target in fs::read_dir(rig.publish_directory())? {
        let path = target?.path();
        if path.is_dir() { fs::remove_dir(path)? } else { fs::remove_file(path)? }
    }
    emptied(rig)?;
    rig.kill_helper()
}

/// Leaves things in the pool that a start has to clean up.
fn leave_traces(rig: &Rig) -> Result<()> {
    fs::create_dir_all(rig.pool().directory.join(".making.vol-c/data"))?;
    Ok(fs::create_dir_all(rig.pool().directory.join(".deleted.7.vol-d/data/deep"))?)
}

fn traced(rig: &Rig, fault: Option<(&Call, Fault)>) -> Result<std::process::Command> {
    Ok(strace::started(&rig.helper_command()?, &rig.work().join("trace"), fault))
}

fn start_with(rig: &mut Rig, call: &Call, fault: Fault) -> Result<bool> {
    leave_traces(rig)?;
    let begun = fs::read_to_string(rig.logs().join("helper.log"))?.len();
    let mut helper = Daemon::start("helper", &mut traced(rig, Some((call, fault)))?, &rig.logs())?;
    let mut started = wait(rig, &mut helper);
    let mut known = Ok(());
    if matches!(started, Ok(Started::Serves)) {
        known = knows_what_is_published(rig).context("the start with the fault");
        // A fault a moment after the start may end the helper as well.
        let moment = if known.is_err() { rig.patience(Duration::from_secs(1)) } else { Duration::ZERO };
        if let Ok(status) = helper.wait(moment) {
            started = Ok(Started::Ended(status));
        }
    }
    let outcome = match &started {
        Ok(Started::Serves) => known,
        Ok(Started::Ended(status)) => match (status.signal(), fault) {
            (Some(9), Fault::Kill) => Ok(()),
            // The emptier may have been killed, or its end noticed.
            (None, _) if !status.success() => gives_a_reason(&helper, begun),
            (None, _) => is_started_anew(&helper, begun),
            _ => Err(anyhow::anyhow!("the start has ended in another way: {status}")),
        },
        Err(error) => Err(anyhow::anyhow!("{error:#}")),
    };
    // If it is just ending, it needs no killing.
    let _ = helper.kill();
    let caused = match fault {
        Fault::Kill => matches!(started, Ok(Started::Ended(_))),
        Fault::Error(_) => injected(rig),
    };
    let mut allowance = Allowance::at_this_pace(rig.patience(Duration::from_secs(20)));
    let after = loop {
        rig.start_helper().context("the start after the fault")?;
        let after = knows_what_is_published(rig).and_then(|()| emptied_but_volumes(rig));
        // While a process of the former helper is still ending, it holds the pool. Once it does not, this helper ends in
        // order, to be started anew.
        if after.is_ok() || allowance.is_spent() || rig.running_helper()?.check_alive().is_ok() {
            break after;
        }
        rig.await_end_of_helper(Duration::ZERO)?;
    };
    let outcome = outcome.and_then(|()| after.context("the start after the fault"));
    // It may just be ending.
    rig.abandon();
    outcome.map(|()| caused)
}

/// strace writes its output a moment after the last process that it follows has ended.
fn injected(rig: &Rig) -> bool {
    let log = rig.work().join("trace");
    let written = || {
        ensure!(was_injected(&fs::read_to_string(&log)?), "nothing was injected");
        Ok(())
    };
    bulkhead_tests::wait::until(rig.patience(Duration::from_millis(200)), written).is_ok()
}

/// Waits until the helper serves or has ended.
fn wait(rig: &Rig, helper: &mut Daemon) -> Result<Started> {
    let mut allowance = Allowance::at_this_pace(rig.patience(Duration::from_secs(10)));
    loop {
        if let Ok(status) = helper.wait(Duration::ZERO) {
            return Ok(Started::Ended(status));
        }
        if HelperClient::welcomed(&rig.helper_socket()).is_ok() {
            return Ok(Started::Serves);
        }
        ensure!(!allowance.is_spent(), "it neither serves nor ends");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// The volumes are mounted, none can be deleted, and the content is there.
fn knows_what_is_published(rig: &Rig) -> Result<()> {
    for id in published(rig) {
        // The fault may hit each of the 74 threads that serve connections once, and the one that turns others away.
        let answers = (0..76).map(|_| rig.helper().and_then(|client| client.request(&delete(id))));
        let mut answers = answers.skip_while(Result::is_err);
        let answer = answers.next().context("the helper closes every connection")??;
        ensure!(answer.is_err(), "{id} is published, and Delete says {answer:?}");
    }
    let others = published(rig).len() - 1;
    let directories = [(rig.kubelet.root().to_owned(), 1), (rig.publish_directory(), others)];
    for (directory, number) in directories {
        let mounted = mounts::below(&directory)?;
        ensure!(mounted.len() == number, "below {} is mounted {mounted:?}", directory.display());
    }
    let file = rig.pool().volume(&DIRECTORY).join("data/file");
    ensure!(fs::read(&file).is_ok_and(|content| content == b"precious"), "{} is gone", file.display());
    Ok(())
}

/// A helper that could not serve a pool ends in order once the pool may be there: a moment later, if only the fault, or the
/// end of a worker that the fault killed, kept it from being served.
fn is_started_anew(helper: &Daemon, begun: usize) -> Result<()> {
    let log = helper.log()?;
    let new = log.get(begun..).unwrap_or_default();
    ensure!(new.contains("the helper ends, to be started anew: "), "the helper has ended without a reason: {new:?}");
    Ok(())
}

/// Checks for a message of the helper's own, as opposed to what the runtime prints when it panics.
fn gives_a_reason(helper: &Daemon, begun: usize) -> Result<()> {
    let log = helper.log()?;
    let new = log.get(begun..).unwrap_or_default();
    let said = new.lines().filter_map(|line| line.split_once(" bulkhead_privhelper: "));
    let reason = said.map(|(_, why)| why).any(|why| why.len() > 28);
    if !reason || new.contains("panicked") {
        bail!("a start was refused without a reason: {new:?}");
    }
    Ok(())
}

fn emptied_but_volumes(rig: &Rig) -> Result<()> {
    rig.eventually(15, || {
        let left = rig.pool().entries()?;
        ensure!(left == published(rig), "the pool holds {left:?}");
        Ok(())
    })
}
