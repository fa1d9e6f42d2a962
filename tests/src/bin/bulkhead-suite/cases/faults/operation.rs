//! Faults at the system calls of operations.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_tests::stand::Stand;
use bulkhead_tests::strace::{Fault, Tracer, was_injected};
use bulkhead_tests::wait;

use super::operations::{Actor, Operation, prepare};
use super::points::{self, ERRORS, Extent, Point, Tally, can_fail, emptied};
use super::session::{Figures, Session, granted, undo};

/// Kills the helper, or its emptier, at calls of these operations. Then another helper starts, the request is sent
/// again, and everything is undone.
pub fn kill(stand: &mut Stand, operations: &[Operation], extent: Extent) -> Result<()> {
    begin(stand)?;
    let points = points::of(stand, operations)?;
    let figures = Figures::now(stand)?;
    let mut tally = Tally::default();
    for point in extent.of(stand, points) {
        let outcome = killed_at(stand, &point, &figures);
        if !tally.add(&name(&point, Fault::Kill), &outcome) {
            break;
        }
        if outcome.is_err() {
            renew(stand, point.operation)?;
        }
    }
    tally.judge()
}

fn killed_at(stand: &mut Stand, point: &Point<'_>, figures: &Figures) -> Result<bool> {
    let (is_killed, answered) = request(stand, point, Fault::Kill)?;
    // After an answer there is nothing to wait for, unless there is work in the background; or unless the kill came after
    // the answer. strace is ended by then, and may have sent the signal without having said so: the helper is given the time
    // to die of it.
    let limit = if answered && !is_killed { Duration::from_millis(500) } else { Duration::from_secs(5) };
    let limit = stand.patience(limit);
    let ended = stand.running_helper()?.wait(limit);
    let caused = match ended {
        Ok(status) => {
            // Between two requests it notices the end of its mounter, and ends in order, to be started anew.
            let is_in_order = point.operation.actor == Actor::Mounter;
            ensure!(is_in_order || !status.success(), "the helper has ended as if it had been asked to");
            stand.start_helper().context("start after a kill")?;
            true
        }
        Err(_) => false,
    };
    ensure!(caused || answered, "the helper outlives a kill, and does not answer");
    for request in point.operation.again() {
        granted(stand, &request).context("the same request again")?;
    }
    undo(stand, point.operation)?;
    figures.check(stand)?;
    Ok(caused)
}

/// Makes calls of these operations fail, each with one error at a time. The request is answered, the helper survives,
/// the request is granted when it is sent again, and everything is undone.
pub fn error(stand: &mut Stand, operations: &[Operation], extent: Extent) -> Result<()> {
    // strace makes a call fail by replacing it with one that the filter does not allow.
    stand.helper_flags.push("--seccomp=log".to_owned());
    begin(stand)?;
    let points = points::of(stand, operations)?;
    let figures = Figures::now(stand)?;
    let points = points.iter().filter(|point| can_fail(&point.call));
    let points: Vec<_> = points.flat_map(|point| ERRORS.map(|error| (point, error))).collect();
    let mut tally = Tally::default();
    for (point, error) in extent.of(stand, points) {
        let outcome = failed_at(stand, point, Fault::Error(error), &figures);
        if !tally.add(&name(point, Fault::Error(error)), &outcome) {
            break;
        }
        if outcome.is_err() {
            renew(stand, point.operation)?;
        }
    }
    // The emptier retries a volume after some seconds.
    emptied(stand)?;
    figures.check(stand)?;
    tally.judge()
}

fn failed_at(stand: &mut Stand, point: &Point<'_>, fault: Fault, figures: &Figures) -> Result<bool> {
    let (caused, answered) = request(stand, point, fault)?;
    let call = point.call.name.as_str();
    let is_message = ["recvfrom", "recvmsg", "sendmsg", "setsockopt"].contains(&call);
    // Lowering a capability starts by checking what is raised.
    let is_capability = ["capget", "capset"].contains(&call);
    // A reply that could not be sent is no answer, and a client whose identity could not be checked is not served.
    if !answered && !is_message && !is_capability && point.operation.actor != Actor::Accepting {
        bail!("the connection was closed without an answer");
    }
    // The helper must not continue with a capability that it cannot lower again, nor serve without an emptier or a mounter,
    // nor after an answer of a mounter that it has not received. accept4 never returns most of these errors in reality.
    let is_of_another = point.operation.is_in_background() || point.operation.actor == Actor::Mounter;
    if is_capability || ["accept4", "recvmsg"].contains(&call) || is_message && is_of_another {
        let moment = stand.patience(Duration::from_millis(500));
        if stand.running_helper()?.wait(moment).is_ok() {
            stand.start_helper()?;
        }
    }
    stand.running_helper()?.check_alive()?;
    for request in point.operation.again() {
        granted(stand, &request).context("the same request again")?;
    }
    undo(stand, point.operation)?;
    if !point.operation.is_in_background() {
        figures.check(stand)?;
    }
    Ok(caused)
}

/// Sends the request of a point with a fault injected. Returns whether the fault occurred, and whether there was an
/// answer.
fn request(stand: &mut Stand, point: &Point<'_>, fault: Fault) -> Result<(bool, bool)> {
    let Point { operation, call } = point;
    let session = Session::open(stand)?;
    operation
        .before
        .iter()
        .try_for_each(|request| session.client.ask(request).map(drop))
        .context("what goes before")?;
    operation.fill(stand)?;
    let log = stand.work().join("trace");
    let tracer = Tracer::inject(&session.threads(operation.actor)?, &log, call, fault)?;
    let answer = session.send(stand, operation);
    if operation.is_in_background() {
        // It is emptied a moment later, unless something prevents that.
        let _ = wait::until(stand.patience(Duration::from_millis(300)), || {
            let injected = std::fs::read_to_string(&log).is_ok_and(|log| was_injected(&log));
            ensure!(injected || stand.pool().entries()?.is_empty(), "still at work");
            Ok(())
        });
    }
    Ok((was_injected(&tracer.end()?), answer.is_ok()))
}

fn begin(stand: &mut Stand) -> Result<()> {
    if stand.pools.is_empty() {
        stand.add_pool("default")?;
    }
    prepare(stand)?;
    stand.start_helper()
}

/// Cleans up after a point that failed, so that the next one has what it needs.
fn renew(stand: &mut Stand, operation: &Operation) -> Result<()> {
    stand.abandon();
    stand.start_helper()?;
    undo(stand, operation)?;
    emptied(stand)
}

fn name(point: &Point<'_>, fault: Fault) -> String {
    format!("{}, {fault} at {}", point.operation.name, point.call)
}
