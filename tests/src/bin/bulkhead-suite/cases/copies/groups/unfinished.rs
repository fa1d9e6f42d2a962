//! What a start makes of a group that was being taken when the helper before it ended.

use std::fs::File;

use anyhow::{Result, ensure};
use bulkhead_protocol::{ErrorKind, Reply, Request, Snapshot};
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::pool::RECORD;
use bulkhead_tests::rig::Rig;
use rustix::fs::XattrFlags;

use super::super::listed;
use super::{BLOCK, check_entries, start};

cases! {
    what_nobody_was_told_of_is_deleted_by_the_next_start: Bare + Xfs,
    what_was_complete_is_so_after_a_start: Bare + Xfs,
    those_that_do_not_say_so_do_not_vouch_for_each_other: Bare + Xfs,
}

/// Replaces the record of a volume, and returns what it was.
fn replace_record(rig: &Rig, id: &str, with: &[u8]) -> Result<Vec<u8>> {
    let directory = File::open(rig.pool().volume(id))?;
    let mut record = vec![0; 256];
    let length = rustix::fs::fgetxattr(&directory, RECORD, &mut record[..])?;
    record.truncate(length);
    rustix::fs::fsetxattr(&directory, RECORD, with, XattrFlags::REPLACE)?;
    Ok(record)
}

/// Has the record of a snapshot say what it says until all that are taken along with it are there.
fn mark_unfinished(rig: &Rig, id: &str) -> Result<()> {
    let mut record = replace_record(rig, id, b"?")?;
    ensure!(record.first() == Some(&1), "the record of {id} begins with {:?}", record.first());
    record[0] = 4;
    replace_record(rig, id, &record).map(drop)
}

/// Takes a group of two, and has the records of some of its snapshots say so after the helper was killed.
fn killed_before_complete(rig: &mut Rig, unfinished: &[&str]) -> Result<Vec<Snapshot>> {
    let helper = start(rig, &[])?;
    helper.ask_all(["vol-a", "vol-b"].map(|id| create(id, image_spec(BLOCK))))?;
    helper.ask(&create_group(&["vol-a", "vol-b"], "snap"))?;
    let taken = listed(&helper, None)?;
    rig.kill_helper()?;
    unfinished.iter().try_for_each(|id| mark_unfinished(rig, id))?;
    Ok(taken)
}

fn end_of_both(helper: &HelperClient) -> Result<()> {
    helper.ask_all(["vol-a-snap", "vol-b-snap"].map(delete_snapshot))?;
    helper.ask_all(["vol-a", "vol-b"].map(delete))
}

fn what_nobody_was_told_of_is_deleted_by_the_next_start(rig: &mut Rig) -> Result<()> {
    let taken = killed_before_complete(rig, &["vol-a-snap", "vol-b-snap"])?;
    let helper = rig.started_helper()?;
    ensure!(listed(&helper, None)?.is_empty(), "a snapshot is shown of which nobody was told");
    check_entries(rig, &["vol-a", "vol-b"])?;
    helper.ask(&create_group(&["vol-a", "vol-b"], "snap"))?;
    let again = listed(&helper, None)?;
    ensure!(again.len() == 2 && again[0].origin.copied > taken[0].origin.copied, "{again:?}");
    end_of_both(&helper)
}

/// Of two, one says so.
fn what_was_complete_is_so_after_a_start(rig: &mut Rig) -> Result<()> {
    let taken = killed_before_complete(rig, &["vol-a-snap"])?;
    let helper = rig.started_helper()?;
    ensure!(listed(&helper, None)? == taken, "it is not as it was");
    ensure!(helper.ask(&create_group(&["vol-a", "vol-b"], "snap"))? == Reply::Done && listed(&helper, None)? == taken);
    rig.kill_helper()?;
    // The one that says so cannot be read.
    mark_unfinished(rig, "vol-a-snap")?;
    let record = replace_record(rig, "vol-b-snap", b"?")?;
    let helper = rig.started_helper()?;
    ensure!(listed(&helper, None)?.is_empty(), "one that may lack others is shown");
    let of_first = create_snapshot("vol-a", "vol-a-snap");
    denied(helper.request(&of_first)?, ErrorKind::AlreadyExists, "vol-a-snap")?;
    check_entries(rig, &["vol-a", "vol-a-snap", "vol-b", "vol-b-snap"])?;
    rig.kill_helper()?;
    replace_record(rig, "vol-b-snap", &record)?;
    let helper = rig.started_helper()?;
    ensure!(listed(&helper, None)? == taken, "it is not as it was, once both can be read");
    end_of_both(&helper)
}

/// Whatever is not served may be one that says so, so they stay, and nobody is told of them.
fn those_that_do_not_say_so_do_not_vouch_for_each_other(rig: &mut Rig) -> Result<()> {
    killed_before_complete(rig, &["vol-a-snap", "vol-b-snap"])?;
    let record = replace_record(rig, "vol-b", b"?")?;
    let helper = rig.started_helper()?;
    ensure!(listed(&helper, None)?.is_empty(), "one that may lack others is shown");
    check_entries(rig, &["vol-a", "vol-a-snap", "vol-b", "vol-b-snap"])?;
    for request in [
        create_from("vol-c", image_spec(BLOCK), "vol-a-snap"),
        Request::Origin { volume: volume("vol-a-snap") },
        Request::Delta { snapshot: volume("vol-a-snap"), base: None, from: 0 },
    ] {
        denied(helper.request(&request)?, ErrorKind::Busy, "taken together")?;
    }
    rig.kill_helper()?;
    replace_record(rig, "vol-b", &record)?;
    let helper = rig.started_helper()?;
    check_entries(rig, &["vol-a", "vol-b"])?;
    helper.ask_all(["vol-a", "vol-b"].map(delete))
}
