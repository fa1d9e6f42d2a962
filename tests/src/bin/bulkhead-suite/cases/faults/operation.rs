//! Faults at the system calls of operations.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::Response;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::{Fault, Tracer, was_injected};
use bulkhead_tests::wait;

use super::operations::{Actor, Operation, prepare};
use super::points::{self, ERRORS, Extent, Point, Tally, can_fail, emptied, is_steady};
use super::session::{Figures, Session, granted, undo};

/// Kills the helper, or its emptier, at calls of these operations. Then another helper starts, the request is sent
/// again, and everything is undone.
pub fn kill(rig: &mut Rig, operations: &[Operation], extent: Extent) -> Result<()> {
    begin(rig)?;
    let points = points::of(rig, operations)?.into_iter().filter(|point| is_steady(&point.call)).collect();
    let figures = Figures::now(rig)?;
    let mut tally = Tally::default();
    for point in extent.of(rig, points) {
        let outcome = killed_at(rig, &point, &figures);
        if !tally.add(&name(&point, Fault::Kill), &outcome) {
            break;
        }
        if outcome.is_err() {
            renew(rig, point.operation)?;
        }
    }
    tally.judge()
}

fn killed_at(rig: &mut Rig, point: &Point<'_>, figures: &Figures) -> Result<bool> {
    let (is_killed, answer) = request(rig, point, Fault::Kill)?;
    let answered = answer.is_ok();
    // After an answer there is nothing to wait for, unless there is work in the background; or unless the kill came after
    // the answer. strace is ended by then, and may have sent the signal without having said so: the helper is given the time
    // to die of it.
    let limit = if answered && !is_killed { Duration::from_millis(500) } else { Duration::from_secs(5) };
    let limit = rig.patience(limit);
    let ended = rig.running_helper()?.wait(limit);
    let caused = match ended {
        Ok(status) => {
            // Between two requests it notices the end of its mounter or placer, and ends in order, to be started anew.
            let is_in_order = matches!(point.operation.actor, Actor::Mounter | Actor::Placer);
            ensure!(is_in_order || !status.success(), "the helper has ended as if it had been asked to");
            rig.start_helper().context("start after a kill")?;
            true
        }
        Err(_) => false,
    };
    ensure!(caused || answered, "the helper outlives a kill, and does not answer");
    for request in point.operation.again() {
        granted(rig, &request).context("the same request again")?;
    }
    undo(rig, point.operation)?;
    figures.check(rig)?;
    Ok(caused)
}

/// Makes calls of these operations fail, each with one error at a time. The request is answered, the helper survives,
/// the request is granted when it is sent again, and everything is undone.
pub fn error(rig: &mut Rig, operations: &[Operation], extent: Extent) -> Result<()> {
    // strace makes a call fail by replacing it with one that the filter does not allow.
    rig.helper_flags.push("--seccomp=log".to_owned());
    begin(rig)?;
    let points = points::of(rig, operations)?;
    let figures = Figures::now(rig)?;
    let points = points.iter().filter(|point| can_fail(&point.call));
    let points: Vec<_> = points.flat_map(|point| ERRORS.map(|error| (point, error))).collect();
    let mut tally = Tally::default();
    for (point, error) in extent.of(rig, points) {
        let outcome = failed_at(rig, point, Fault::Error(error), &figures);
        if !tally.add(&name(point, Fault::Error(error)), &outcome) {
            break;
        }
        if outcome.is_err() {
            renew(rig, point.operation)?;
        }
    }
    // The emptier retries a volume after some seconds.
    emptied(rig)?;
    figures.check(rig)?;
    tally.judge()
}

fn failed_at(rig: &mut Rig, point: &Point<'_>, fault: Fault, figures: &Figures) -> Result<bool> {
    let (caused, answer) = request(rig, point, fault)?;
    let answered = answer.is_ok();
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
    let is_of_another =
        point.operation.is_in_background() || matches!(point.operation.actor, Actor::Mounter | Actor::Placer);
    if is_capability || ["accept4", "recvmsg"].contains(&call) || is_message && is_of_another {
        let moment = rig.patience(Duration::from_millis(500));
        if rig.running_helper()?.wait(moment).is_ok() {
            rig.start_helper()?;
        }
    }
    rig.running_helper()?.check_alive()?;
    for request in point.operation.again() {
        granted(rig, &request).context("the same request again")?;
    }
    undo(rig, point.operation)?;
    if !point.operation.is_in_background() {
        figures.check(rig)?;
    }
    Ok(caused)
}

/// Sends the request of a point with a fault injected. Returns whether the fault occurred, and the answer, if there was one.
pub fn request(rig: &mut Rig, point: &Point<'_>, fault: Fault) -> Result<(bool, Result<Response>)> {
    let Point { operation, call, .. } = point;
    let session = Session::open(rig)?;
    operation
        .before
        .iter()
        .try_for_each(|request| session.client.ask(request).map(drop))
        .context("what goes before")?;
    operation.fill(rig)?;
    let log = rig.work().join("trace");
    let tracer = Tracer::inject(&session.threads(operation.actor)?, &log, call, fault)?;
    let answer = session.send(rig, operation);
    if operation.is_in_background() {
        // It is emptied a moment later, unless something prevents that.
        let _ = wait::until(rig.patience(Duration::from_millis(300)), || {
            let injected = std::fs::read_to_string(&log).is_ok_and(|log| was_injected(&log));
            ensure!(injected || rig.pool().entries()?.is_empty(), "still at work");
            Ok(())
        });
    }
    Ok((was_injected(&tracer.end()?), answer))
}

/// Starts a helper on a pool, where there is what a kubelet makes before it calls.
pub fn begin(rig: &mut Rig) -> Result<()> {
    if rig.pools.is_empty() {
        rig.add_pool("default")?;
    }
    prepare(rig)?;
    rig.start_helper()
}

/// Cleans up after a point that failed, so that the next one has what it needs.
pub fn renew(rig: &mut Rig, operation: &Operation) -> Result<()> {
    rig.abandon();
    rig.start_helper()?;
    undo(rig, operation)?;
    emptied(rig)
}

/// What a point and its fault are called.
pub fn name(point: &Point<'_>, fault: Fault) -> String {
    format!("{}, {fault} at {}", point.operation.name, point.call)
}
