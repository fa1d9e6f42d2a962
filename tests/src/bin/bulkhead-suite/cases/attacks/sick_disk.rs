//! A disk that fails while a name is written to it: no answer is given that a power cut could undo, and nothing is
//! forgotten.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{ErrorKind, Reply, Request, Response, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::{create, delete, directory_spec};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::Tracer;

cases! {
    a_deletion_that_is_not_on_the_disk_is_not_done: Bare,
    a_creation_that_is_not_on_the_disk_is_not_done: Bare,
    a_sync_that_hangs_keeps_no_other_deletion_waiting: Bare,
    what_cannot_be_moved_out_of_the_way_is_emptied_where_it_is: Bare,
}

const SIZE: u64 = 1 << 20;
const EIO: ErrorKind = ErrorKind::Io(5);

/// Makes calls of the helper fail until the returned value is dropped.
fn sick(rig: &mut Rig, call: &str, when: &str) -> Result<Tracer> {
    Tracer::fail(rig.helper_pid()?, call, "EIO", when)
}

/// strace makes a call fail by replacing it with one that the filter does not allow.
fn start(rig: &mut Rig) -> Result<()> {
    rig.helper_flags.push("--seccomp=log".to_owned());
    rig.start()
}

fn a_deletion_that_is_not_on_the_disk_is_not_done(rig: &mut Rig) -> Result<()> {
    start(rig)?;
    let helper = rig.helper()?;
    helper.ask(&create("v0", directory_spec(SIZE)))?;
    let sick = sick(rig, "fsync", "1..2")?;
    for _ in 0..2 {
        denied(helper.request(&delete("v0"))?, EIO, "sync to disk")?;
        ensure!(!rig.pool().volume("v0").exists(), "it has its name still");
    }
    drop(sick);
    helper.ask(&delete("v0"))?;
    Ok(())
}

fn a_creation_that_is_not_on_the_disk_is_not_done(rig: &mut Rig) -> Result<()> {
    start(rig)?;
    let helper = rig.helper()?;
    let sick = sick(rig, "fsync", "1..2")?;
    for _ in 0..2 {
        denied(helper.request(&create("v0", directory_spec(SIZE)))?, EIO, "sync to disk")?;
    }
    drop(sick);
    helper.ask(&create("v0", directory_spec(SIZE)))?;
    Ok(())
}

/// Deleting a volume that no longer exists depends on the sync that failed, and retries it.
fn a_sync_that_hangs_keeps_no_other_deletion_waiting(rig: &mut Rig) -> Result<()> {
    start(rig)?;
    let (helper, waiting) = (rig.helper()?, rig.helper()?);
    helper.ask(&create("v0", directory_spec(SIZE)))?;
    let failing = sick(rig, "fsync", "1")?;
    denied(helper.request(&delete("v0"))?, EIO, "sync to disk")?;
    drop(failing);
    let process = rig.helper_pid()?;
    let hanging = Tracer::delay(process, "fsync", rig.patience(Duration::from_secs(60)))?;
    waiting.send(&encode(&delete("v0"))?)?;
    ensure!(!waiting.is_answered(Duration::from_millis(500))?, "the sync does not hang");
    let begun = Instant::now();
    denied(helper.request(&delete("v1"))?, ErrorKind::Busy, "sync")?;
    ensure!(begun.elapsed() < rig.patience(Duration::from_secs(10)), "it took {:?}", begun.elapsed());
    drop(hanging);
    let answer: Response = decode(&waiting.receive()?.context("the connection is closed")?)?;
    ensure!(matches!(answer, Ok(Reply::Done)), "{answer:?}");
    helper.ask(&delete("v1"))?;
    Ok(())
}

fn what_cannot_be_moved_out_of_the_way_is_emptied_where_it_is(rig: &mut Rig) -> Result<()> {
    start(rig)?;
    let helper = rig.helper()?;
    // The volume cannot be given its name, nor then the name under which it would be emptied.
    let sick = sick(rig, "renameat2", "1..2")?;
    denied(helper.request(&create("v0", directory_spec(SIZE)))?, EIO, "give it its name")?;
    drop(sick);
    rig.eventually(5, || {
        rig.pool().holds(&[])?;
        match helper.ask(&Request::PoolStatus { pool: "default".parse()? })? {
            Reply::Pool(status) => ensure!(status.promised == 0, "{} bytes are promised to nobody", status.promised),
            other => bail!("no pool status: {other:?}"),
        }
        Ok(())
    })?;
    helper.ask(&create("v0", directory_spec(SIZE)))?;
    Ok(())
}
