//! A pool whose filesystem blocks every change while it is copied from: the requests wait, everybody else is served, and once
//! it answers again there is what was asked for, and once.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{ErrorKind, Reply, Request, Response, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::processes;
use bulkhead_tests::rig::Rig;
use rustix::process::Signal;

use super::{check_filled, fill, listed, ranges, take};
use crate::cases::attacks::frozen::Frozen;

cases! {
    a_copy_waits_for_a_frozen_pool_and_holds_up_nobody_else: Bare + Xfs,
    a_helper_killed_beside_a_frozen_pool_leaves_no_half_of_a_copy: Bare + Xfs,
    more_copies_than_a_frozen_pool_admits_are_refused: Bare + Xfs,
}

const SIZE: u64 = 8 << 20;

/// Two pools. The first has vol-a, which is in use, and a snapshot of it.
fn start(rig: &mut Rig) -> Result<HelperClient> {
    rig.add_pools(["default", "other"])?;
    let helper = rig.started_helper()?;
    for request in
        [create(own("vol-a"), image_spec(SIZE)), attach(own("vol-a")), make_device(own("vol-a"), own("vol-a"))]
    {
        helper.ask(&request)?;
    }
    fill(&rig.target(own("vol-a")), 1, 0, SIZE)?;
    take(&helper, own("vol-a"), "snap-0")?;
    Ok(helper)
}

fn end(rig: &Rig, made: &[&str]) -> Result<()> {
    let helper = rig.helper()?;
    for id in made {
        helper.ask_patiently(&delete(id))?;
    }
    for request in [remove_device(own("vol-a"), own("vol-a")), detach(own("vol-a")), delete(own("vol-a"))] {
        helper.ask(&request)?;
    }
    for snapshot in listed(&helper, None)? {
        helper.ask(&Request::DeleteSnapshot { snapshot: snapshot.snapshot })?;
    }
    gone(rig)
}

/// Waits until nothing is in the pools, nor promised there.
fn gone(rig: &Rig) -> Result<()> {
    let helper = rig.helper()?;
    rig.eventually(20, || {
        for pool in &rig.pools {
            let (entries, status) = (pool.entries()?, helper.pool_status(&pool.name)?);
            ensure!(entries.is_empty() && status.promised == 0 && status.emptying == 0, "{entries:?} {status:?}");
        }
        Ok(())
    })
}

/// Both kinds of copies. One is made at a time.
fn copies() -> [Request; 2] {
    [create_snapshot(own("vol-a"), "snap-1"), create_from(own("vol-b"), image_spec(2 * SIZE), "snap-0")]
}

/// Sends a request, which is not answered now.
fn ask_in_vain(rig: &Rig, request: &Request) -> Result<HelperClient> {
    let client = rig.helper()?;
    client.send(&encode(request)?)?;
    ensure!(!client.is_answered(Duration::from_millis(500))?, "{request:?} does not wait");
    Ok(client)
}

fn answer(client: &HelperClient) -> Result<Response> {
    Ok(decode(&client.receive()?.context("the connection is closed")?)?)
}

/// A whole life in the other pool, and what can be told of the frozen one without a change to it.
fn check_others(rig: &Rig) -> Result<()> {
    let helper = rig.helper()?;
    let in_other = |id: &str| -> Result<Request> { Ok(create_in("other", id, image_spec(SIZE))) };
    helper.ask(&in_other(own("vol-o"))?)?;
    take(&helper, own("vol-o"), "snap-o")?;
    let (pool, spec, source) = ("other".parse()?, image_spec(SIZE), volume("snap-o"));
    helper.ask(&Request::CreateFrom { volume: volume(own("vol-p")), pool, spec, source })?;
    for request in [delete(own("vol-o")), delete(own("vol-p")), delete_snapshot("snap-o")] {
        helper.ask(&request)?;
    }
    helper.ask(&Request::Origin { volume: volume("snap-0") })?;
    helper.ask(&Request::Usage { volume: volume("snap-0"), target: None })?;
    ensure!(ranges(&helper, "snap-0", None)?.len() == 1, "what a snapshot holds is told without a change to the pool");
    check_filled(&rig.pool().image("snap-0"), 1, 0, SIZE)
}

fn a_copy_waits_for_a_frozen_pool_and_holds_up_nobody_else(rig: &mut Rig) -> Result<()> {
    let helper = start(rig)?;
    for (request, id) in copies().into_iter().zip(["snap-1", own("vol-b")]) {
        let frozen = Frozen::freeze(&rig.pool().directory)?;
        let waiting = ask_in_vain(rig, &request)?;
        check_others(rig)?;
        ensure!(!rig.pool().entries()?.iter().any(|entry| entry == id), "{id} is there before it is complete");
        for other in [request.clone(), create_snapshot(own("vol-a"), "snap-2"), delete(id)] {
            denied(helper.request(&other)?, ErrorKind::Busy, "in progress")?;
        }
        drop(frozen);
        let first = answer(&waiting)?.map_err(|error| anyhow::anyhow!("{request:?}: {error}"))?;
        ensure!(helper.ask(&request)? == first, "{request:?} is answered otherwise when it is repeated");
    }
    ensure!(rig.pool().entries()? == ["snap-0", "snap-1", own("vol-a"), own("vol-b")], "{:?}", rig.pool().entries()?);
    check_filled(&rig.pool().image("snap-1"), 1, 0, SIZE)?;
    check_filled(&rig.pool().image(own("vol-b")), 1, 0, SIZE)?;
    end(rig, &[own("vol-b")])
}

/// Its threads end only when the pool answers again; what they were about to make is then made or not, and never in part.
fn a_helper_killed_beside_a_frozen_pool_leaves_no_half_of_a_copy(rig: &mut Rig) -> Result<()> {
    drop(start(rig)?);
    for request in copies() {
        let frozen = Frozen::freeze(&rig.pool().directory)?;
        let waiting = ask_in_vain(rig, &request)?;
        processes::signal(rig.helper_pid()?, Signal::KILL)?;
        drop(frozen);
        let status = rig.end_of_helper(rig.patience(Duration::from_secs(20)))?;
        ensure!(status.signal() == Some(9), "the helper ended with {status}");
        drop(waiting);
        rig.start_helper()?;
        let helper = rig.helper()?;
        let first = helper.ask(&request)?;
        ensure!(helper.ask(&request)? == first, "{request:?} is answered otherwise when it is repeated");
    }
    rig.eventually(20, || {
        let entries = rig.pool().entries()?;
        ensure!(entries == ["snap-0", "snap-1", own("vol-a"), own("vol-b")], "{entries:?}");
        Ok(())
    })?;
    check_filled(&rig.pool().image("snap-1"), 1, 0, SIZE)?;
    check_filled(&rig.pool().image(own("vol-b")), 1, 0, SIZE)?;
    end(rig, &[own("vol-b")])
}

/// Each ties up a thread. The other pool's requests have threads of their own.
fn more_copies_than_a_frozen_pool_admits_are_refused(rig: &mut Rig) -> Result<()> {
    const CLIENTS: usize = 24;
    let helper = start(rig)?;
    let ids: Vec<String> = (0..CLIENTS).map(|number| format!("src-{number:02}")).collect();
    for id in &ids {
        helper.ask(&create(id, image_spec(1 << 20)))?;
    }
    // One that is used: to publish it again changes nothing in the pool.
    helper.ask_all([create(own("vol-d"), directory_spec(SIZE)), bind(own("vol-d"), "d"), unbind(own("vol-d"), "d")])?;
    let frozen = Frozen::freeze(&rig.pool().directory)?;
    let mut waiting = Vec::new();
    for (number, id) in ids.iter().enumerate() {
        let request = match number % 2 {
            0 => create_snapshot(id, &format!("snap-{id}")),
            _ => create_from(&format!("copy-{id}"), image_spec(1 << 20), id),
        };
        let client = rig.helper()?;
        client.send(&encode(&request)?)?;
        waiting.push((client, request));
    }
    std::thread::sleep(rig.patience(Duration::from_secs(1)));
    let mut refused = Vec::new();
    for (client, request) in &waiting {
        if client.is_answered(Duration::ZERO)? {
            denied(answer(client)?, ErrorKind::Busy, "operations are in progress")?;
            refused.push(request);
        }
    }
    ensure!(refused.len() == CLIENTS - 1, "{} are refused", refused.len());
    for _ in 0..20 {
        helper
            .ask_all([bind(own("vol-d"), "d"), unbind(own("vol-d"), "d")])
            .context("beside them, in the same pool")?;
    }
    let other = create_in("other", own("vol-o"), image_spec(SIZE));
    for request in [other, create_snapshot(own("vol-o"), "snap-o"), delete(own("vol-o")), delete_snapshot("snap-o")] {
        helper.ask(&request)?;
    }
    drop(frozen);
    for (client, request) in &waiting {
        if !refused.contains(&request) {
            answer(client)?.map_err(|error| anyhow::anyhow!("{request:?}: {error}"))?;
        }
    }
    for (_, request) in &waiting {
        let reply = helper.ask(request)?;
        ensure!(matches!(reply, Reply::Snapshot(_) | Reply::Size(_)), "{reply:?}");
    }
    let copies: Vec<String> =
        ids.iter().enumerate().filter(|(number, _)| number % 2 == 1).map(|(_, id)| format!("copy-{id}")).collect();
    let made: Vec<&str> = ids.iter().chain(&copies).map(String::as_str).collect();
    helper.ask(&delete(own("vol-d")))?;
    rig.eventually(20, || {
        ensure!(rig.pool().entries()?.len() == 2 + ids.len() + CLIENTS, "{:?}", rig.pool().entries()?);
        Ok(())
    })?;
    end(rig, &made)
}
