//! Snapshots of several volumes at one moment.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_protocol::{ErrorKind, MountFlags, Reply, Request, Response, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::processes;
use bulkhead_tests::pool::run;
use bulkhead_tests::rig::Rig;
use bulkhead_tests::strace::Tracer;
use rustix::process::Signal;

use super::{listed, origin};
use crate::cases::attacks::frozen::Frozen;
use crate::cases::filesystems::{SIZE, check_detached, check_image, make_pool, mounter_of};

cases! {
    no_write_is_in_one_snapshot_without_its_predecessor_in_the_other: Bare + Xfs + Kernel,
    a_group_is_whole_and_the_same_again: Bare + Xfs + Kernel,
    what_cannot_be_taken_together_leaves_nothing: Bare + Xfs,
    what_is_left_of_a_group_is_not_completed: Bare + Xfs,
    one_that_its_pod_has_frozen_fails_the_group_and_stays_frozen: Bare + Xfs,
    a_member_in_a_frozen_pool_stops_no_writer_of_another: Bare + Xfs,
    a_hold_ends_by_itself: Bare + Xfs + Slow,
    a_helper_killed_while_all_is_frozen_thaws_it_when_it_starts: Bare + Xfs + Slow,
    a_group_is_taken_of_what_its_helper_mounted_before: Bare + Xfs,
}

const BLOCK: u64 = 8 << 20;

fn start(rig: &mut Rig, ids: &[&str]) -> Result<HelperClient> {
    make_pool(rig, 6)?;
    let helper = rig.started_helper()?;
    for id in ids {
        helper.ask(&create(id, filesystem_spec(SIZE)))?;
        publish(&helper, id)?;
    }
    Ok(helper)
}

fn publish(helper: &HelperClient, id: &str) -> Result<()> {
    helper.ask_all([mount_filesystem(id), bind(id, id)])
}

fn end(rig: &Rig, helper: &HelperClient, ids: &[&str]) -> Result<()> {
    for id in ids {
        helper.ask_all([unbind(id, id), unmount_filesystem(id)])?;
        check_image(rig, id)?;
        helper.ask(&delete(id))?;
    }
    Ok(())
}

/// What an image says of its filesystem: whether a helper may have left it frozen.
fn mark(rig: &Rig, id: &str) -> Result<[u8; 1]> {
    let mut mark = [0; 1];
    rustix::fs::fgetxattr(File::open(rig.pool().image(id))?, "trusted.bulkhead.filesystem", &mut mark[..])?;
    Ok(mark)
}

/// Checks that each of these can be written to.
fn check_writable(rig: &Rig, ids: &[&str]) -> Result<()> {
    for id in ids {
        let file = File::create(rig.target(id).join("written"))?;
        file.write_all_at(id.as_bytes(), 0)?;
        file.sync_all()?;
    }
    Ok(())
}

/// Checks that no snapshot is left, nor anything of one, and that no image says that its filesystem may be frozen.
fn check_nothing_left(rig: &Rig, ids: &[&str]) -> Result<()> {
    ensure!(listed(&rig.helper()?, None)?.is_empty(), "a snapshot is left");
    rig.eventually(20, || {
        let (mut entries, mut wanted) = (rig.pool().entries()?, ids.to_vec());
        wanted.sort_unstable();
        entries.sort_unstable();
        ensure!(entries == wanted, "{entries:?}");
        Ok(())
    })?;
    for id in ids {
        ensure!(&mark(rig, id)? == b"1", "{id} may be frozen");
    }
    Ok(())
}

/// The number that a program has written last.
fn count(rig: &Rig, id: &str) -> Result<u64> {
    let text = fs::read_to_string(rig.target(id).join("count"))?;
    text.trim_end_matches('.').parse().with_context(|| format!("{id} holds {text:?}"))
}

/// A program writes a number to one, then to the other, and so on; nothing is synced.
fn no_write_is_in_one_snapshot_without_its_predecessor_in_the_other(rig: &mut Rig) -> Result<()> {
    const GROUPS: usize = 12;
    let ids = ["vol-a", "vol-b"];
    let helper = start(rig, &ids)?;
    let files: Vec<File> =
        ids.iter().map(|id| Ok(File::create(rig.target(id).join("count"))?)).collect::<Result<_>>()?;
    let write = |file: &File, number: u64| file.write_all_at(format!("{number:.<16}").as_bytes(), 0);
    files.iter().try_for_each(|file| write(file, 0))?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| -> Result<()> {
        let writer = scope.spawn(|| -> Result<u64> {
            let mut number = 0;
            while !is_over.load(Relaxed) {
                number += 1;
                files.iter().try_for_each(|file| write(file, number))?;
            }
            Ok(number)
        });
        let taken = (0..GROUPS).try_for_each(|group| {
            thread::sleep(Duration::from_millis(20));
            helper.ask(&create_group(&ids, &format!("snap-{group:02}"))).map(drop)
        });
        is_over.store(true, Relaxed);
        let written = writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        println!("{written} rounds during {GROUPS} groups");
        taken
    })?;
    let mut before = 0;
    for group in 0..GROUPS {
        let mut found = Vec::new();
        for (id, copy) in ids.iter().zip(["vol-c", "vol-d"]) {
            let snapshot = format!("{id}-snap-{group:02}");
            helper.ask(&create_from(copy, filesystem_spec(SIZE), &snapshot))?;
            publish(&helper, copy)?;
            found.push(count(rig, copy)?);
            helper.ask(&delete_snapshot(&snapshot))?;
        }
        end(rig, &helper, &["vol-c", "vol-d"])?;
        let (first, second) = (found[0], found[1]);
        ensure!(first == second || first == second + 1, "group {group}: {first} and {second}");
        ensure!(first >= before, "group {group} is older than the one before: {first} and {before}");
        before = first;
    }
    drop(files);
    end(rig, &helper, &ids)?;
    check_detached(rig)
}

/// Of filesystems, published and not, and of block volumes that nobody writes to.
fn a_group_is_whole_and_the_same_again(rig: &mut Rig) -> Result<()> {
    let helper = start(rig, &["vol-a"])?;
    fs::write(rig.target("vol-a").join("file"), "not synced")?;
    helper.ask_all([
        create("vol-b", filesystem_spec(SIZE)),
        create("vol-c", image_spec(BLOCK)),
        create("vol-d", image_spec(BLOCK)),
        Request::LoopAttach { volume: volume("vol-d"), read_only: true },
        make_device("vol-d", "vol-d"),
    ])?;
    let ids = ["vol-a", "vol-b", "vol-c", "vol-d"];
    let group = create_group(&ids, "snap");
    ensure!(helper.ask(&group)? == Reply::Done);
    let taken = listed(&helper, None)?;
    let times: Vec<u64> = taken.iter().map(|snapshot| snapshot.origin.copied).collect();
    ensure!(times.len() == ids.len() && times.iter().all(|time| *time == times[0] && *time > 0), "{taken:?}");
    check_writable(rig, &["vol-a"])?;
    let reversed = create_group(&["vol-d", "vol-c", "vol-b", "vol-a"], "snap");
    for again in [&group, &reversed] {
        ensure!(helper.ask(again)? == Reply::Done && listed(&helper, None)? == taken, "another group was taken");
    }
    rig.kill_helper()?;
    let helper = rig.started_helper()?;
    ensure!(helper.ask(&group)? == Reply::Done && listed(&helper, None)? == taken, "after a restart");
    helper.ask(&create_from("vol-e", filesystem_spec(SIZE), "vol-a-snap"))?;
    publish(&helper, "vol-e")?;
    ensure!(fs::read_to_string(rig.target("vol-e").join("file"))? == "not synced");
    ensure!(origin(&helper, "vol-e")?.is_some_and(|origin| origin.source == volume("vol-a-snap")));
    // Also once a volume is gone.
    helper.ask(&delete("vol-c"))?;
    ensure!(helper.ask(&group)? == Reply::Done);
    helper.ask_all(ids.map(|id| delete_snapshot(&format!("{id}-snap"))))?;
    helper.ask_all([remove_device("vol-d", "vol-d"), detach("vol-d"), delete("vol-d"), delete("vol-b")])?;
    end(rig, &helper, &["vol-e", "vol-a"])
}

fn what_cannot_be_taken_together_leaves_nothing(rig: &mut Rig) -> Result<()> {
    let helper = start(rig, &["vol-a"])?;
    helper.ask_all([
        create("vol-b", image_spec(BLOCK)),
        attach("vol-b"),
        make_device("vol-b", "vol-b"),
        create("vol-c", directory_spec(BLOCK)),
        create_snapshot("vol-b", "snap"),
    ])?;
    let no_group =
        Request::CreateGroup { members: Default::default(), name_hash: bulkhead_protocol::NameHash([6; 32]) };
    for (request, kind, why) in [
        (create_group(&["vol-a", "vol-b"], "snap"), ErrorKind::InUse, "block volume vol-b is published"),
        (create_group(&["vol-a", "vol-c"], "snap"), ErrorKind::Unsupported, "directory"),
        (create_group(&["vol-a", "snap"], "snap"), ErrorKind::Invalid, "snapshot itself"),
        (create_group(&["vol-a", "vol-x"], "snap"), ErrorKind::NotFound, "vol-x"),
        (create_group(&["vol-a", "vol-a"], "snap"), ErrorKind::Invalid, "occurs twice"),
        (no_group, ErrorKind::Invalid, "no volume"),
    ] {
        denied(helper.request(&request)?, kind, why)?;
        ensure!(listed(&helper, None)?.len() == 1, "{request:?} has left a snapshot");
        check_writable(rig, &["vol-a"])?;
    }
    helper.ask_all([remove_device("vol-b", "vol-b"), detach("vol-b"), delete_snapshot("snap"), delete("vol-c")])?;
    helper.ask(&create_group(&["vol-a", "vol-b"], "snap"))?;
    helper.ask_all(["vol-a-snap", "vol-b-snap"].map(delete_snapshot))?;
    helper.ask(&delete("vol-b"))?;
    check_nothing_left(rig, &["vol-a"])?;
    end(rig, &helper, &["vol-a"])
}

/// Somebody has deleted one of its snapshots: another one would be of another moment.
fn what_is_left_of_a_group_is_not_completed(rig: &mut Rig) -> Result<()> {
    let helper = start(rig, &[])?;
    helper.ask_all(["vol-a", "vol-b", "vol-c"].map(|id| create(id, image_spec(BLOCK))))?;
    let group = create_group(&["vol-a", "vol-b"], "snap");
    helper.ask(&group)?;
    let larger = create_group(&["vol-a", "vol-b", "vol-c"], "snap");
    denied(helper.request(&larger)?, ErrorKind::AlreadyExists, "taken along with others")?;
    helper.ask(&delete_snapshot("vol-a-snap"))?;
    denied(helper.request(&group)?, ErrorKind::AlreadyExists, "vol-b-snap")?;
    // One that is of no group.
    helper.ask_all([delete_snapshot("vol-b-snap"), create_snapshot("vol-c", "vol-b-snap")])?;
    denied(helper.request(&group)?, ErrorKind::AlreadyExists, "vol-b-snap")?;
    helper.ask_all([delete_snapshot("vol-b-snap"), group.clone()])?;
    helper.ask_all(["vol-a-snap", "vol-b-snap"].map(delete_snapshot))?;
    helper.ask_all(["vol-a", "vol-b", "vol-c"].map(delete))
}

fn one_that_its_pod_has_frozen_fails_the_group_and_stays_frozen(rig: &mut Rig) -> Result<()> {
    let ids = ["vol-a", "vol-b"];
    let helper = start(rig, &ids)?;
    for frozen_one in ids {
        let frozen = Frozen::freeze(&rig.target(frozen_one))?;
        denied(helper.request(&create_group(&ids, "snap"))?, ErrorKind::Busy, "fsfreeze --unfreeze")?;
        check_writable(rig, ids.into_iter().filter(|id| *id != frozen_one).collect::<Vec<_>>().as_slice())?;
        check_nothing_left(rig, &ids)?;
        let again = std::process::Command::new("fsfreeze").arg("--freeze").arg(rig.target(frozen_one)).output()?;
        ensure!(!again.status.success(), "the helper has thawed what a pod has frozen");
        drop(frozen);
    }
    helper.ask(&create_group(&ids, "snap"))?;
    check_writable(rig, &ids)?;
    helper.ask_all(ids.map(|id| delete_snapshot(&format!("{id}-snap"))))?;
    end(rig, &helper, &ids)
}

/// What waits for the pool does so before anything is frozen.
fn a_member_in_a_frozen_pool_stops_no_writer_of_another(rig: &mut Rig) -> Result<()> {
    make_pool(rig, 4)?;
    rig.add_pool("other")?;
    let helper = rig.started_helper()?;
    helper.ask_all([create("vol-a", filesystem_spec(SIZE)), create_in("other", "vol-b", image_spec(BLOCK))])?;
    publish(&helper, "vol-a")?;
    let group = create_group(&["vol-a", "vol-b"], "snap");
    let frozen = Frozen::freeze(&rig.pools[1].directory)?;
    let waiting = rig.helper()?;
    waiting.send(&encode(&group)?)?;
    ensure!(!waiting.is_answered(Duration::from_millis(500))?, "it does not wait for the frozen pool");
    check_writable(rig, &["vol-a"])?;
    denied(helper.request(&create_snapshot("vol-a", "snap"))?, ErrorKind::Busy, "in progress")?;
    helper.check_serves("default")?;
    drop(frozen);
    let answer: Response = decode(&waiting.receive()?.context("the connection is closed")?)?;
    ensure!(answer == Ok(Reply::Done), "{answer:?}");
    helper.ask_all(["vol-a-snap", "vol-b-snap"].map(delete_snapshot))?;
    helper.ask(&delete("vol-b"))?;
    end(rig, &helper, &["vol-a"])
}

/// The keeper takes longer for the copies than anything is kept frozen.
fn a_hold_ends_by_itself(rig: &mut Rig) -> Result<()> {
    let helper = start(rig, &["vol-a"])?;
    let group = create_group(&["vol-a"], "snap");
    let delayed = slow_copies(rig)?;
    let waiting = rig.helper()?;
    waiting.send(&encode(&group)?)?;
    let answer: Response = decode(&waiting.receive()?.context("the connection is closed")?)?;
    denied(answer, ErrorKind::Busy, "did not stay frozen")?;
    delayed.end()?;
    check_writable(rig, &["vol-a"])?;
    check_nothing_left(rig, &["vol-a"])?;
    helper.ask(&group)?;
    helper.ask(&delete_snapshot("vol-a-snap"))?;
    end(rig, &helper, &["vol-a"])
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
    run(std::process::Command::new("sync").arg("-f").arg(rig.target("vol-a")))?;
    helper.ask_all(ids.map(|id| delete_snapshot(&format!("{id}-snap"))))?;
    end(rig, &helper, &ids)
}
