//! A pool's disk dies while it is copied from: nothing more is answered as done, everybody is told why, and after the repair
//! everything that was answered as done is there, and nothing else.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, Request, Response, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::pool::{mount_anew, output, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::Tracer;

use super::{check_filled, fill, listed, take};

cases! {
    a_copy_that_fails_leaves_its_source_as_it_was: Bare + Xfs,
    a_pool_that_shuts_down_while_a_snapshot_is_taken: Bare + Xfs,
    a_pool_that_shuts_down_while_a_snapshot_is_restored: Bare + Xfs,
    a_pool_that_shuts_down_while_a_volume_is_cloned: Bare + Xfs,
}

const SIZE: u64 = 4 << 20;

/// The calls in which the disk dies: before the source is written out, before and after its blocks are shared, and before the
/// copy gets its name.
const CALLS: [&str; 4] = ["fsync", "fsetxattr", "ftruncate", "renameat2"];

fn a_pool_that_shuts_down_while_a_snapshot_is_taken(rig: &mut Rig) -> Result<()> {
    each_call(rig, &create_snapshot(own("vol-a"), "new"))
}

fn a_pool_that_shuts_down_while_a_snapshot_is_restored(rig: &mut Rig) -> Result<()> {
    each_call(rig, &create_from("new", image_spec(2 * SIZE), "snap-1"))
}

fn a_pool_that_shuts_down_while_a_volume_is_cloned(rig: &mut Rig) -> Result<()> {
    each_call(rig, &create_from("new", image_spec(SIZE), own("vol-a")))
}

fn each_call(rig: &mut Rig, request: &Request) -> Result<()> {
    // What the kernel lets strace delay is not on the list of what the helper may call.
    rig.helper_flags.push("--seccomp=log".to_owned());
    rig.add_pools(["default", "other"])?;
    for call in CALLS {
        rig.start_helper()?;
        dies_in(rig, request, call).with_context(|| call)?;
        rig.stop_helper()?;
    }
    rig.helper_flags.clear();
    rig.start_helper()
}

fn dies_in(rig: &mut Rig, request: &Request, call: &str) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([
        create(own("vol-a"), image_spec(SIZE)),
        attach(own("vol-a")),
        make_device(own("vol-a"), own("vol-a")),
    ])?;
    fill(&rig.target(own("vol-a")), 1, 0, SIZE)?;
    take(&helper, own("vol-a"), "snap-1")?;
    helper.ask(&create_from(own("vol-b"), image_spec(SIZE), "snap-1"))?;
    fill(&rig.target(own("vol-a")), 2, 0, SIZE)?;
    let process = rig.helper_pid()?;
    let delayed = Tracer::delay(process, call, rig.patience(Duration::from_secs(30)))?;
    helper.send(&encode(request)?)?;
    ensure!(!helper.is_answered(Duration::from_millis(300))?, "it does not come to {call}");
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&rig.pool().directory))?;
    drop(delayed);
    let response: Response = decode(&helper.receive()?.context("the connection is closed")?)?;
    let told = response.err().context("it is answered as done")?;
    ensure!(told.message.as_str().contains("new") || told.message.as_str().contains(own("vol-a")), "{told}");
    check_dead(rig, request)?;
    repair(rig)?;
    check_kept(rig, request)
}

/// What a dead pool answers; the other one is served as before.
fn check_dead(rig: &Rig, request: &Request) -> Result<()> {
    let helper = rig.helper()?;
    for _ in 0..3 {
        let response = helper.request(request)?;
        ensure!(response.is_err(), "repeated, it is answered with {response:?}");
    }
    let status = helper.pool_status("default")?;
    ensure!(status.conditions.as_slice().contains(&Condition::ShutDown) && status.available == 0, "{status:?}");
    ensure!(helper.request(&create_snapshot(own("vol-b"), "snap-b"))?.is_err(), "a snapshot is taken on a dead disk");
    let other = create_in("other", own("vol-o"), image_spec(SIZE));
    helper.ask_all([
        other,
        create_snapshot(own("vol-o"), "snap-o"),
        delete(own("vol-o")),
        delete_snapshot("snap-o"),
    ])?;
    // The volume can be taken from its pod.
    helper.ask(&remove_device(own("vol-a"), own("vol-a")))?;
    helper.ask(&detach(own("vol-a"))).map(drop)
}

/// Mounts the pool anew, which repairs it, and starts another helper.
pub fn repair(rig: &mut Rig) -> Result<()> {
    rig.kill_helper()?;
    mount_anew(&rig.run_options, &rig.pool().directory)?;
    rig.start_helper()
}

/// What was answered as done is there and whole, nothing else is, and the request that failed succeeds.
fn check_kept(rig: &Rig, request: &Request) -> Result<()> {
    let helper = rig.helper()?;
    ensure!(listed(&helper, None)?.iter().any(|found| found.snapshot == volume("snap-1")), "a snapshot is lost");
    for id in [volume(own("vol-a")), volume(own("vol-b"))] {
        ensure!(helper.volumes()?.contains(&id), "{id} is lost");
    }
    check_filled(&rig.pool().image("snap-1"), 1, 0, SIZE)?;
    check_filled(&rig.pool().image(own("vol-b")), 1, 0, SIZE)?;
    check_filled(&rig.pool().image(own("vol-a")), 2, 0, SIZE)?;
    helper.ask_patiently(request)?;
    let of_snapshot = matches!(request, Request::CreateFrom { source, .. } if *source == volume("snap-1"));
    check_filled(&rig.pool().image("new"), if of_snapshot { 1 } else { 2 }, 0, SIZE)?;
    rig.eventually(10, || rig.pool().holds(&["new", "snap-1", own("vol-a"), own("vol-b")]))?;
    let is_snapshot = matches!(request, Request::CreateSnapshot { .. });
    let last = if is_snapshot { delete_snapshot("new") } else { delete("new") };
    helper.ask_all([last, delete_snapshot("snap-1"), delete(own("vol-a")), delete(own("vol-b"))])?;
    rig.eventually(10, || {
        let (entries, status) = (rig.pool().entries()?, helper.pool_status("default")?);
        ensure!(entries.is_empty() && status.promised == 0 && status.emptying == 0, "{entries:?} {status:?}");
        Ok(())
    })
}

/// The unit in which shared blocks of an image are replaced, which is set before it is copied.
fn copy_unit(rig: &Rig, id: &str) -> Result<String> {
    output(Command::new("xfs_io").args(["-r", "-c", "cowextsize"]).arg(rig.pool().image(id)))
}

fn a_copy_that_fails_leaves_its_source_as_it_was(rig: &mut Rig) -> Result<()> {
    rig.helper_flags.push("--seccomp=log".to_owned());
    let helper = rig.started_helper()?;
    helper.ask(&create(own("vol-a"), image_spec(1 << 20)))?;
    let before = copy_unit(rig, own("vol-a"))?;
    ensure!(before.starts_with("[0]"), "{before}");
    let copies =
        [create_snapshot(own("vol-a"), "snap-a"), create_from(own("vol-c"), image_spec(1 << 20), own("vol-a"))];
    for call in ["fsync", "mkdirat", "renameat2"] {
        let broken = Tracer::fail(rig.helper_pid()?, call, "EIO", "1+")?;
        for copy in &copies {
            let answer = rig.helper()?.request(copy)?;
            ensure!(answer.is_err(), "{call} fails, and it is answered {answer:?}");
        }
        drop(broken);
        ensure!(copy_unit(rig, own("vol-a"))? == before, "{call}: {}", copy_unit(rig, own("vol-a"))?);
    }
    // What a copy has set stays for the next, even if that fails.
    rig.helper()?.ask_patiently(&copies[0])?;
    let set = copy_unit(rig, own("vol-a"))?;
    ensure!(set.starts_with("[4096]"), "{set}");
    let broken = Tracer::fail(rig.helper_pid()?, "mkdirat", "EIO", "1+")?;
    ensure!(rig.helper()?.request(&copies[1])?.is_err());
    drop(broken);
    ensure!(copy_unit(rig, own("vol-a"))? == set);
    rig.helper()?.ask_all([copies[1].clone(), delete_snapshot("snap-a"), delete(own("vol-c")), delete(own("vol-a"))])
}
