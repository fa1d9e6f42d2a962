//! Files that were unlinked while they were open, when a copy is taken: whoever mounts the copy removes them first. And what
//! is said of a copy that cannot be mounted.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::ErrorKind;
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;
use nix::libc;

use super::take;
use crate::cases::filesystems::{SIZE, check_detached, check_image, helper_flags, make_pool_of};

cases! {
    a_copy_that_cannot_be_mounted_names_what_it_is_a_copy_of: Bare + Xfs,
    copies_of_very_many_files_without_names_are_all_mounted: Bare + Xfs + Host + Long,
}

fn a_copy_that_cannot_be_mounted_names_what_it_is_a_copy_of(rig: &mut Rig) -> Result<()> {
    make_pool_of(rig, 3072, 4)?;
    let helper = rig.started_helper()?;
    helper.ask_all([create("vol-a", filesystem_spec(SIZE)), mount_filesystem("vol-a"), bind("vol-a", "a")])?;
    std::fs::write(rig.target("a/file"), "content")?;
    take(&helper, "vol-a", "snap-1")?;
    helper.ask(&create_from("vol-b", filesystem_spec(SIZE), "snap-1"))?;
    let spoil = |id: &str| File::options().write(true).open(rig.pool().image(id))?.write_all_at(&[7; 4096], 0);
    spoil("vol-b")?;
    denied(
        helper.request(&mount_filesystem("vol-b"))?,
        ErrorKind::Io(libc::EINVAL),
        "snap-1, of which it is a copy, is unchanged",
    )?;
    // It is: another copy of it is as it should be.
    helper.ask_all([
        create_from("vol-c", filesystem_spec(SIZE), "snap-1"),
        mount_filesystem("vol-c"),
        bind("vol-c", "c"),
    ])?;
    ensure!(std::fs::read(rig.target("c/file"))? == b"content");
    helper.ask(&delete_snapshot("snap-1"))?;
    denied(
        helper.request(&mount_filesystem("vol-b"))?,
        ErrorKind::Io(libc::EINVAL),
        "snap-1, of which it is a copy, does not exist",
    )?;
    // What is no copy says nothing of the kind.
    helper.ask_all([unbind("vol-a", "a"), unmount_filesystem("vol-a")])?;
    spoil("vol-a")?;
    let refused = helper.request(&mount_filesystem("vol-a"))?;
    ensure!(refused.as_ref().is_err_and(|error| !error.to_string().contains("copy")), "{refused:?}");
    helper.ask_all([unbind("vol-c", "c"), unmount_filesystem("vol-c")])?;
    check_image(rig, "vol-c")?;
    helper.ask_all(["vol-a", "vol-b", "vol-c"].map(delete))?;
    check_detached(rig)
}

/// How many files are open that have no name. Each process has as many open as the host's limit allows it for sure.
const FILES: usize = 75_000;
const PROCESSES: usize = 5;
const COPIES: usize = 8;

/// Keeps that many files open, and goes on making new ones in the place of old ones.
fn churn(directory: &std::path::Path) -> Result<Vec<Child>> {
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let mut command = Command::new("/usr/bin/python3");
        command.args(["-c", include_str!("unlinked.py")]).arg(directory).arg((FILES / PROCESSES).to_string());
        processes.push(command.stdout(Stdio::piped()).spawn().context("start /usr/bin/python3")?);
    }
    for process in &mut processes {
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("its output")?).read_line(&mut line)?;
        ensure!(line == "ready\n", "{line:?}");
    }
    Ok(processes)
}

/// How often a volume is asked for.
const TRIES: usize = 4;

/// Mounts a copy. The kernel fails to free the files of some (`xfs_ifree` returns -117, seen on Linux 6.18), and goes on at the
/// next attempt, which the helper makes at once, or whoever asks again.
fn mount_as_a_kubelet(rig: &Rig, helper: &HelperClient, id: &str) -> Result<()> {
    let ask = || helper.ask_within(rig.patience(Duration::from_secs(120)), &mount_filesystem(id)).map(drop);
    for _ in 1..TRIES {
        match ask() {
            Err(error) => ensure!(error.to_string().contains("of which it is a copy, is unchanged"), "{error:#}"),
            mounted => return mounted,
        }
    }
    ask()
}

fn copies_of_very_many_files_without_names_are_all_mounted(rig: &mut Rig) -> Result<()> {
    make_pool_of(rig, 10_240, 10)?;
    ensure!(rig.helper_flags == helper_flags());
    let helper = rig.started_helper()?;
    helper.ask_all([create("vol-a", filesystem_spec(SIZE)), mount_filesystem("vol-a"), bind("vol-a", "vol-a")])?;
    std::fs::write(rig.target("vol-a/file"), "content")?;
    let mut processes = churn(&rig.target("vol-a"))?;
    let copy = |number: usize| -> Result<()> {
        let snapshot = format!("snap-{number}");
        helper.ask_patiently(&create_snapshot("vol-a", &snapshot))?;
        helper.ask_patiently(&create_from(&format!("vol-{number}"), filesystem_spec(SIZE), &snapshot)).map(drop)
    };
    let copied = (0..COPIES).try_for_each(copy);
    for process in &mut processes {
        process.kill()?;
        process.wait()?;
    }
    copied?;
    for number in 0..COPIES {
        let id = format!("vol-{number}");
        mount_as_a_kubelet(rig, &helper, &id)?;
        helper.ask(&bind(&id, &id))?;
        ensure!(std::fs::read(rig.target(&id).join("file"))? == b"content");
        helper.ask(&unbind(&id, &id))?;
        helper.ask_patiently(&unmount_filesystem(&id))?;
        check_image(rig, &id).context(id)?;
    }
    for number in 0..COPIES {
        helper.ask_all([delete(&format!("vol-{number}")), delete_snapshot(&format!("snap-{number}"))])?;
    }
    helper.ask_within(rig.patience(Duration::from_secs(120)), &unbind("vol-a", "vol-a"))?;
    helper.ask_within(rig.patience(Duration::from_secs(120)), &unmount_filesystem("vol-a"))?;
    check_image(rig, "vol-a")?;
    helper.ask(&delete("vol-a"))?;
    check_detached(rig)
}
