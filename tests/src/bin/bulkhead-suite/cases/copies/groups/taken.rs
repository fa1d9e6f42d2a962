//! What is taken together, and what is not.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bulkhead_protocol::{ErrorKind, Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;

use super::super::{listed, origin};
use super::{BLOCK, check_nothing_left, check_writable, end, publish, start};
use crate::cases::attacks::frozen::Frozen;
use crate::cases::filesystems::{SIZE, check_detached, make_pool};

cases! {
    no_write_is_in_one_snapshot_without_its_predecessor_in_the_other: Bare + Xfs,
    nor_in_two_hundred_groups: Bare + Long + Xfs,
    a_group_is_whole_and_the_same_again: Bare + Xfs,
    what_cannot_be_taken_together_leaves_nothing: Bare + Xfs,
    what_is_left_of_a_group_is_not_completed: Bare + Xfs,
    members_of_several_pools_are_refused_at_once: Bare + Xfs,
}

/// The number that a program has written last.
fn count(rig: &Rig, id: &str) -> Result<u64> {
    let text = fs::read_to_string(rig.target(id).join("count"))?;
    text.trim_end_matches('.').parse().with_context(|| format!("{id} holds {text:?}"))
}

fn no_write_is_in_one_snapshot_without_its_predecessor_in_the_other(rig: &mut Rig) -> Result<()> {
    take_while_written(rig, 1)
}

fn nor_in_two_hundred_groups(rig: &mut Rig) -> Result<()> {
    take_while_written(rig, 20)
}

/// Takes groups of two that a program writes to, some at a time, and looks into each.
fn take_while_written(rig: &mut Rig, times: usize) -> Result<()> {
    let ids = ["vol-a", "vol-b"];
    let helper = start(rig, &ids)?;
    for _ in 0..times {
        take_of_pair(rig, &helper, ids)?;
        check_pairs(rig, &helper, ids)?;
    }
    end(rig, &helper, &ids)?;
    check_detached(rig)
}

/// How many groups are taken before they are looked into.
const GROUPS: usize = 10;

/// A program writes a number to one, then to the other, and so on; nothing is synced.
fn take_of_pair(rig: &Rig, helper: &HelperClient, ids: [&str; 2]) -> Result<()> {
    let files = ids.map(|id| File::create(rig.target(id).join("count")));
    let files: Vec<File> = files.into_iter().collect::<Result<_, _>>()?;
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
            helper.ask(&create_group(&ids, &format!("snap-{group}"))).map(drop)
        });
        is_over.store(true, Relaxed);
        let written = writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        println!("{written} rounds during {GROUPS} groups");
        taken
    })
}

fn check_pairs(rig: &Rig, helper: &HelperClient, ids: [&str; 2]) -> Result<()> {
    let mut before = 0;
    for group in 0..GROUPS {
        let mut found = Vec::new();
        for (id, copy) in ids.iter().zip(["vol-c", "vol-d"]) {
            let snapshot = format!("{id}-snap-{group}");
            helper.ask(&create_from(copy, filesystem_spec(SIZE), &snapshot))?;
            publish(helper, copy)?;
            found.push(count(rig, copy)?);
            helper.ask(&delete_snapshot(&snapshot))?;
        }
        end(rig, helper, &["vol-c", "vol-d"])?;
        let (first, second) = (found[0], found[1]);
        ensure!(first == second || first == second + 1, "group {group}: {first} and {second}");
        ensure!(first >= before, "group {group} is older than the one before: {first} and {before}");
        before = first;
    }
    Ok(())
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

/// A pool that hangs would keep the others from what the group holds there.
fn members_of_several_pools_are_refused_at_once(rig: &mut Rig) -> Result<()> {
    make_pool(rig, 4)?;
    rig.add_pool("other")?;
    let helper = rig.started_helper()?;
    helper.ask_all([create("vol-a", filesystem_spec(SIZE)), create_in("other", "vol-b", image_spec(BLOCK))])?;
    publish(&helper, "vol-a")?;
    let frozen = Frozen::freeze(&rig.pools[1].directory)?;
    for ids in [["vol-a", "vol-b"], ["vol-b", "vol-a"]] {
        denied(helper.request(&create_group(&ids, "snap"))?, ErrorKind::Unsupported, "different pools")?;
    }
    helper.ask(&create_group(&["vol-a"], "snap"))?;
    drop(frozen);
    helper.ask_all([delete_snapshot("vol-a-snap"), delete("vol-b")])?;
    end(rig, &helper, &["vol-a"])
}
