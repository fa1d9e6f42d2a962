//! The request that deletes only volumes that were never published: a client's mistake costs no data.

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, Reply, Request, VolumeSpec};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::loops;
use bulkhead_tests::pool::RECORD;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::{Tracer, of_helper};
use rustix::fs::{XattrFlags, fsetxattr};

cases! {
    a_volume_that_was_never_published_is_deleted,
    one_that_was_published_once_is_refused,
    what_is_published_is_refused,
    an_attached_image_counts_as_used,
    a_kill_at_any_moment_forgets_no_use,
    growing_is_no_use,
    reading_is_a_use,
    a_record_without_the_mark_may_hold_data,
    one_that_is_not_there_is_deleted_already,
    a_name_made_anew_is_unused_again,
    a_deletion_that_fails_leaves_a_volume_that_can_be_used: Bare,
    a_publish_that_fails_is_no_use: Bare,
    a_use_that_cannot_be_taken_back_stays: Bare,
}

const SIZE: u64 = 16 << 20;

/// Volumes of both kinds.
fn kinds() -> [(&'static str, VolumeSpec); 2] {
    [(own("vol-a"), directory_spec(SIZE)), (own("vol-b"), image_spec(SIZE))]
}

/// The requests that publish a volume with this name, and those that unpublish it.
fn publishing(id: &str) -> (Vec<Request>, Vec<Request>) {
    if id == own("vol-a") {
        return (vec![bind(id, id)], vec![unbind(id, id)]);
    }
    (vec![attach(id), make_device(id, id)], vec![remove_device(id, id), detach(id)])
}

fn check_refused(rig: &Rig, id: &str) -> Result<()> {
    denied(rig.helper()?.request(&discard(id))?, ErrorKind::Refused, "may hold data")?;
    ensure!(rig.pool().volume(id).exists(), "{id} is gone");
    Ok(())
}

fn a_volume_that_was_never_published_is_deleted(rig: &mut Rig) -> Result<()> {
    for (id, spec) in kinds() {
        for restart in [false, true] {
            rig.helper()?.ask(&create(id, spec))?;
            if restart {
                rig.restart_helper()?;
            }
            for _ in 0..2 {
                ensure!(rig.helper()?.ask(&discard(id))? == Reply::Done);
            }
            ensure!(!rig.pool().volume(id).exists());
        }
    }
    Ok(())
}

fn one_that_was_published_once_is_refused(rig: &mut Rig) -> Result<()> {
    for (id, spec) in kinds() {
        let helper = rig.helper()?;
        helper.ask(&create(id, spec))?;
        let (publish, unpublish) = publishing(id);
        // Twice, since only the first time is recorded.
        for request in publish.iter().chain(&unpublish).chain(&publish).chain(&unpublish) {
            helper.ask(request)?;
        }
        check_refused(rig, id)?;
        rig.restart_helper()?;
        check_refused(rig, id)?;
        // Creating it "again" succeeds and changes nothing.
        rig.helper()?.ask(&create(id, spec))?;
        check_refused(rig, id)?;
    }
    Ok(())
}

fn what_is_published_is_refused(rig: &mut Rig) -> Result<()> {
    for (id, spec) in kinds() {
        let helper = rig.helper()?;
        helper.ask(&create(id, spec))?;
        let (publish, _) = publishing(id);
        publish.iter().try_for_each(|request| helper.ask(request).map(drop))?;
        check_refused(rig, id)?;
        rig.restart_helper()?;
        check_refused(rig, id)?;
    }
    Ok(())
}

fn an_attached_image_counts_as_used(rig: &mut Rig) -> Result<()> {
    rig.helper()?.ask(&create(own("vol-b"), image_spec(SIZE)))?;
    rig.helper()?.ask(&attach(own("vol-b")))?;
    check_refused(rig, own("vol-b"))?;
    ensure!(loops::backed_by(&rig.pool().device()?)?.len() == 1, "the device is gone");
    Ok(())
}

/// The helper is killed after each request of a volume's life.
fn a_kill_at_any_moment_forgets_no_use(rig: &mut Rig) -> Result<()> {
    for (id, spec) in kinds() {
        rig.helper()?.ask(&create(id, spec))?;
        let (publish, unpublish) = publishing(id);
        for request in publish.iter().chain(&unpublish) {
            rig.helper()?.ask(request)?;
            rig.restart_helper()?;
            check_refused(rig, id)?;
        }
    }
    Ok(())
}

fn growing_is_no_use(rig: &mut Rig) -> Result<()> {
    use bulkhead_protocol::{Inodes, VolumeKind};
    let inodes = Inodes::try_from(8192)?;
    for (id, spec) in kinds() {
        rig.helper()?.ask(&create(id, spec))?;
        let size = bytes(2 * SIZE);
        let is_directory = matches!(spec.kind, VolumeKind::Directory { .. });
        rig.helper()?.ask(&match is_directory {
            true => Request::SetQuota { volume: volume(id), size, inodes },
            false => Request::GrowImage { volume: volume(id), size },
        })?;
        rig.restarted_helper()?.ask(&discard(id))?;
    }
    Ok(())
}

/// The purpose of the first publish makes no difference.
fn reading_is_a_use(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([
        create(own("vol-a"), directory_spec(SIZE)),
        bind_read_only(own("vol-a"), "a"),
        unbind(own("vol-a"), "a"),
    ])?;
    check_refused(rig, own("vol-a"))
}

/// The record of a volume as written by a helper that does not know the mark.
fn a_record_without_the_mark_may_hold_data(rig: &mut Rig) -> Result<()> {
    for (id, spec) in kinds() {
        rig.helper()?.ask(&create(id, spec))?;
        rig.kill_helper()?;
        let (outer, mut record) = rig.pool().record(id)?;
        ensure!(record[0] == 2, "the mark is {}", record[0]);
        record[0] = 1;
        fsetxattr(&outer, RECORD, &record, XattrFlags::REPLACE)?;
        rig.start_helper()?;
        check_refused(rig, id)?;
    }
    Ok(())
}

fn one_that_is_not_there_is_deleted_already(rig: &mut Rig) -> Result<()> {
    ensure!(rig.helper()?.ask(&discard(own("vol-x")))? == Reply::Done);
    Ok(())
}

fn a_name_made_anew_is_unused_again(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask_all([create(own("vol-a"), directory_spec(SIZE)), bind(own("vol-a"), "a"), unbind(own("vol-a"), "a")])?;
    helper.ask_all([delete(own("vol-a")), create(own("vol-a"), directory_spec(SIZE)), discard(own("vol-a"))])
}

/// Starts a helper whose calls can be made to fail, and makes volumes.
fn start_to_fail(rig: &mut Rig) -> Result<()> {
    rig.helper_flags.push("--seccomp=log".to_owned());
    rig.start_helper()?;
    rig.helper()?.ask_all(kinds().map(|(id, spec)| create(id, spec)))
}

/// Makes these calls of the helper fail until the value is dropped.
fn failing(rig: &Rig, calls: &str, error: &str) -> Result<Tracer> {
    let (trace, inject) = (format!("trace={calls}"), format!("inject={calls}:error={error}"));
    Tracer::follow_processes(&of_helper(rig.helper_pid()?), "/dev/null".as_ref(), &["-e", &trace, "-e", &inject])
}

/// Neither renaming nor marking works, nor in the end making the directory again that was removed as a step.
fn a_deletion_that_fails_leaves_a_volume_that_can_be_used(rig: &mut Rig) -> Result<()> {
    start_to_fail(rig)?;
    for restart in [false, true] {
        for calls in ["renameat2,fchmod", "renameat2,fchmod,mkdirat", "renameat2,fchmod,fsync"] {
            for (id, spec) in kinds() {
                let broken = failing(rig, calls, "EIO")?;
                let answer = rig.helper()?.request(&discard(id))?;
                ensure!(answer.as_ref().is_err_and(|error| matches!(error.kind, ErrorKind::Io(_))), "{answer:?}");
                let made = rig.helper()?.request(&create(id, spec))?;
                let is_there = id == own("vol-b") || rig.pool().volume(id).join("data").is_dir();
                ensure!(is_there || made.is_err(), "{calls}: Create answers {made:?} without content");
                ensure!(made.is_ok() || calls != "renameat2,fchmod", "{calls}: Create answers {made:?}");
                drop(broken);
                if restart {
                    rig.restart_helper()?;
                }
                let (publish, unpublish) = publishing(id);
                for request in publish.iter().chain(&unpublish) {
                    rig.helper()?.ask(request)?;
                }
                rig.helper()?.ask_all([delete(id), create(id, spec)])?;
                // Nor is it in the way of the same request.
                let broken = failing(rig, calls, "EIO")?;
                ensure!(rig.helper()?.request(&discard(id))?.is_err());
                drop(broken);
                rig.helper()?.ask_all([discard(id), create(id, spec)])?;
            }
        }
    }
    Ok(())
}

fn a_publish_that_fails_is_no_use(rig: &mut Rig) -> Result<()> {
    start_to_fail(rig)?;
    for restart in [false, true] {
        // Nothing is mounted; and no loop device is made.
        for (id, calls) in [(own("vol-a"), "move_mount"), (own("vol-b"), "mknodat")] {
            let broken = failing(rig, calls, "ENOMEM")?;
            let answer = rig.helper()?.request(&publishing(id).0[0])?;
            ensure!(answer.is_err(), "{calls} fails, and it is answered {answer:?}");
            drop(broken);
            if restart {
                rig.restart_helper()?;
            }
            rig.helper()?.ask(&discard(id))?;
            ensure!(!rig.pool().volume(id).exists());
        }
        rig.helper()?.ask_all(kinds().map(|(id, spec)| create(id, spec)))?;
    }
    // The same request again is a use.
    for (id, _) in kinds() {
        let (publish, unpublish) = publishing(id);
        for request in publish.iter().chain(&unpublish) {
            rig.helper()?.ask(request)?;
        }
        check_refused(rig, id)?;
    }
    Ok(())
}

/// The record is written once, and not a second time.
fn a_use_that_cannot_be_taken_back_stays(rig: &mut Rig) -> Result<()> {
    start_to_fail(rig)?;
    let flags = ["-e", "trace=move_mount,fsetxattr", "-e", "inject=move_mount:error=ENOMEM", "-e"];
    let second = [&flags[..], &["inject=fsetxattr:error=EIO:when=2"]].concat();
    // Each thread counts its own calls, and a connection has one.
    let client = rig.helper()?;
    let broken = Tracer::follow_processes(&of_helper(rig.helper_pid()?), "/dev/null".as_ref(), &second)?;
    ensure!(client.request(&bind(own("vol-a"), own("vol-a")))?.is_err());
    drop(broken);
    check_refused(rig, own("vol-a"))?;
    rig.helper()?.ask_all([bind(own("vol-a"), own("vol-a")), unbind(own("vol-a"), own("vol-a")), delete(own("vol-a"))])
}
