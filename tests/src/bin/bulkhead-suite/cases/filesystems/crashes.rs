//! Whatever a crash, or a copy, catches of an image after any answered request can be mounted, and is without fault.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::ErrorKind;
use bulkhead_tests::cases;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::pool::run;
use bulkhead_tests::random::Random;
use bulkhead_tests::rig::Rig;
use rustix::fs::XattrFlags;

use super::{check_image, end, helper_flags, make_pool, make_pool_of};
use crate::cases::attacks::frozen::Frozen;

cases! {
    what_a_crash_catches_after_two_growths_can_be_mounted: Bare + Xfs,
    random_lives_can_be_mounted_after_every_step: Bare + Xfs,
    many_random_lives: Bare + Xfs + Kernel + Long,
    a_growth_that_was_cut_short_is_completed: Bare,
    one_that_its_pod_has_frozen_is_not_grown: Bare,
    one_that_a_killed_helper_has_left_frozen_is_thawed: Bare,
}

/// A group of such a small filesystem, and four of them: the least that it has.
const GROUP: u64 = 75 << 20;
/// See [`GROUP`]. Every growth makes a group, and the log tells of it.
const SMALLEST: u64 = 4 * GROUP;
/// What says on an image that a helper has frozen the filesystem in it.
const MARK: &str = "trusted.bulkhead.filesystem";

fn published(rig: &mut Rig, ids: &[&str]) -> Result<HelperClient> {
    make_pool(rig, 4)?;
    let helper = rig.started_helper()?;
    for id in ids {
        helper.ask_all([create(id, filesystem_spec(SMALLEST)), mount_filesystem(id), bind(id, id)])?;
    }
    Ok(helper)
}

/// Writes files in ten directories, each of which the kernel places in a group of its own as long as there are any.
fn write(rig: &Rig, name: &str, bytes: usize) -> Result<File> {
    let directory = |number: u32| rig.target("vol-a").join(format!("{name}-{number}"));
    let mut last = None;
    for number in 0..10 {
        fs::create_dir(directory(number))?;
        let mut file = File::create(directory(number).join("file"))?;
        file.write_all(&vec![7; bytes])?;
        last = Some(file);
    }
    last.context("no file")
}

fn sync(rig: &Rig) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(rig.target("vol-a"))?)?)
}

/// Mounts a copy of a volume's image as it is at this moment, as after a crash, and checks it.
fn check_crash(rig: &Rig, id: &str) -> Result<()> {
    let (copy, point) = (rig.pool().directory.join(".crash"), rig.work().join("crash"));
    fs::create_dir_all(&point)?;
    run(Command::new("cp").args(["--reflink=always"]).arg(rig.pool().image(id)).arg(&copy))?;
    let checked = check_mounts(&copy, &point);
    fs::remove_file(&copy)?;
    checked.with_context(|| format!("what a crash catches of {id}"))
}

fn check_mounts(image: &Path, point: &Path) -> Result<()> {
    run(Command::new("mount").args(["-t", "xfs", "-o", "loop,nouuid"]).arg(image).arg(point))?;
    run(Command::new("umount").arg(point))?;
    run(Command::new("xfs_repair").args(["-n", "-f"]).arg(image))
}

fn what_a_crash_catches_after_two_growths_can_be_mounted(rig: &mut Rig) -> Result<()> {
    let helper = published(rig, &["vol-a"])?;
    // Nothing is in its log.
    helper.ask_all([unbind("vol-a", "vol-a"), unmount_filesystem("vol-a"), mount_filesystem("vol-a")])?;
    helper.ask(&bind("vol-a", "vol-a"))?;
    for growth in 1..=2 {
        helper.ask(&grow_filesystem("vol-a", SMALLEST + growth * GROUP))?;
        check_crash(rig, "vol-a").with_context(|| format!("after growth {growth}"))?;
        write(rig, &format!("file-{growth}"), 64 << 10)?;
        check_crash(rig, "vol-a")?;
    }
    sync(rig)?;
    check_crash(rig, "vol-a")?;
    // The same at the first mount after a growth.
    helper.ask_all([create("vol-b", filesystem_spec(SMALLEST)), grow_filesystem("vol-b", SMALLEST + 3 * GROUP)])?;
    helper.ask_all([mount_filesystem("vol-b"), bind("vol-b", "vol-b")])?;
    check_crash(rig, "vol-b")?;
    end(rig, &helper, &["vol-a", "vol-b"])
}

fn random_lives_can_be_mounted_after_every_step(rig: &mut Rig) -> Result<()> {
    lives(rig, 3)
}

fn many_random_lives(rig: &mut Rig) -> Result<()> {
    lives(rig, 60)
}

fn lives(rig: &mut Rig, number: u64) -> Result<()> {
    make_pool_of(rig, 6144, 8)?;
    ensure!(rig.helper_flags == helper_flags());
    let (helper, mut copies) = (rig.started_helper()?, 0);
    for seed in 0..number {
        let mut life = Life { random: Random::new(seed), size: SMALLEST, copies: 0 };
        life.live(rig, &helper).with_context(|| format!("the life of seed {seed}"))?;
        copies += life.copies;
    }
    println!("{number} lives, {copies} copies mounted");
    Ok(())
}

/// A volume's life, which a seed decides.
struct Life {
    random: Random,
    size: u64,
    copies: usize,
}

impl Life {
    fn live(&mut self, rig: &Rig, helper: &HelperClient) -> Result<()> {
        helper.ask_all([
            create("vol-a", filesystem_spec(SMALLEST)),
            mount_filesystem("vol-a"),
            bind("vol-a", "vol-a"),
        ])?;
        let (steps, mut taken) = (8 + self.random.below(8), Vec::new());
        for step in 0..steps {
            let what = self.step(rig, helper, step)?;
            taken.push(what);
            check_crash(rig, "vol-a").with_context(|| format!("after {taken:?}"))?;
            self.copies += 1;
        }
        // As a power cut leaves it: nothing but the log is written from now on.
        write(rig, "last", 64 << 10)?.sync_all()?;
        run(Command::new("xfs_io").args(["-x", "-c", "shutdown -f"]).arg(rig.target("vol-a")))?;
        check_crash(rig, "vol-a").with_context(|| format!("after {taken:?} and its end"))?;
        helper.ask_all([unbind("vol-a", "vol-a"), mount_filesystem("vol-a"), bind("vol-a", "vol-a")])?;
        ensure!(fs::read(rig.target("vol-a/last-9/file"))?.len() == 64 << 10, "what was synced is missing");
        self.copies += 2;
        end(rig, helper, &["vol-a"])
    }

    fn step(&mut self, rig: &Rig, helper: &HelperClient, step: usize) -> Result<&'static str> {
        let name = format!("file-{step}");
        Ok(match self.random.below(10) {
            0..=3 if self.size < SMALLEST + 6 * GROUP => {
                self.size += GROUP;
                helper.ask(&grow_filesystem("vol-a", self.size))?;
                write(rig, &name, 4096 << self.random.below(6))?;
                "a growth and a write"
            }
            0..=4 => {
                write(rig, &name, 4096 << self.random.below(6))?;
                "a write"
            }
            5 => {
                write(rig, &name, 4096 << self.random.below(6))?.sync_all()?;
                "a synced write"
            }
            6 => {
                sync(rig)?;
                "a sync"
            }
            7 => {
                // Nothing is in the log.
                helper.ask_all([unbind("vol-a", "vol-a"), unmount_filesystem("vol-a"), mount_filesystem("vol-a")])?;
                helper.ask(&bind("vol-a", "vol-a"))?;
                "a new mount"
            }
            8 => {
                helper.ask(&create_snapshot("vol-a", "snap-1"))?;
                self.mount_copy(rig, helper, "snap-1")?;
                helper.ask(&delete_snapshot("snap-1"))?;
                "a snapshot"
            }
            _ => {
                self.mount_copy(rig, helper, "vol-a")?;
                "a clone"
            }
        })
    }

    /// A volume made from a snapshot or a volume is mounted, sometimes grown, and without fault.
    fn mount_copy(&mut self, rig: &Rig, helper: &HelperClient, source: &str) -> Result<()> {
        let size = self.size + GROUP * self.random.below(2) as u64;
        helper.ask_all([create_from("vol-c", filesystem_spec(size), source), mount_filesystem("vol-c")])?;
        check_crash(rig, "vol-c")?;
        helper.ask(&unmount_filesystem("vol-c"))?;
        check_image(rig, "vol-c")?;
        self.copies += 2;
        helper.ask(&delete("vol-c")).map(drop)
    }
}

/// It would wait for the pod, with the place that it has.
fn one_that_its_pod_has_frozen_is_not_grown(rig: &mut Rig) -> Result<()> {
    let helper = published(rig, &["vol-a"])?;
    let length = |rig: &Rig| Ok::<_, anyhow::Error>(fs::metadata(rig.pool().image("vol-a"))?.len());
    let frozen = Frozen::freeze(&rig.target("vol-a"))?;
    for _ in 0..2 {
        denied(helper.request(&grow_filesystem("vol-a", 2 * SMALLEST))?, ErrorKind::Busy, "fsfreeze --unfreeze")?;
        ensure!(length(rig)? == SMALLEST, "the image has grown");
    }
    // What it has already is no growth.
    helper.ask(&grow_filesystem("vol-a", SMALLEST))?;
    // One that is let go stays as it is, and would hold up whoever mounts it if it had to grow then.
    helper.ask(&unbind("vol-a", "vol-a"))?;
    denied(helper.request(&unmount_filesystem("vol-a"))?, ErrorKind::Busy, "vol-a")?;
    denied(helper.request(&grow_filesystem("vol-a", 2 * SMALLEST))?, ErrorKind::Busy, "fsfreeze --unfreeze")?;
    ensure!(length(rig)? == SMALLEST, "the image has grown");
    helper.ask_all([mount_filesystem("vol-a"), bind("vol-a", "vol-a")])?;
    drop(frozen);
    helper.ask(&grow_filesystem("vol-a", 2 * SMALLEST))?;
    ensure!(length(rig)? == 2 * SMALLEST);
    write(rig, "file", 1 << 20)?.sync_all()?;
    end(rig, &helper, &["vol-a"])
}

/// It is killed between freezing and thawing, which takes a moment only: here, it is as if.
fn one_that_a_killed_helper_has_left_frozen_is_thawed(rig: &mut Rig) -> Result<()> {
    let helper = published(rig, &["vol-a", "vol-b", "vol-d"])?;
    drop(helper);
    rig.kill_helper()?;
    for id in ["vol-a", "vol-b", "vol-d"] {
        // The last is its pod's doing, and stays.
        if id != "vol-d" {
            let image = File::open(rig.pool().image(id))?;
            rustix::fs::fsetxattr(image, MARK, b"2", XattrFlags::empty())?;
        }
        run(Command::new("fsfreeze").arg("--freeze").arg(rig.target(id)))?;
    }
    // Not published any more: nobody could thaw it.
    run(Command::new("umount").arg(rig.target("vol-b")))?;
    rig.start_helper()?;
    let helper = rig.helper()?;
    rig.eventually(10, || {
        for id in ["vol-a", "vol-b"] {
            let mut mark = [0; 1];
            rustix::fs::fgetxattr(File::open(rig.pool().image(id))?, MARK, &mut mark[..])?;
            ensure!(&mark == b"1", "{id}: {mark:?}");
        }
        Ok(())
    })?;
    write(rig, "file", 1 << 20)?.sync_all()?;
    let thawed = Command::new("fsfreeze").arg("--unfreeze").arg(rig.target("vol-d")).status()?;
    ensure!(thawed.success(), "the helper has thawed what a pod has frozen");
    helper.ask_all([mount_filesystem("vol-b"), bind("vol-b", "vol-b")])?;
    fs::write(rig.target("vol-b/file"), "content")?;
    end(rig, &helper, &["vol-a", "vol-b", "vol-d"])
}

/// The kernel writes the superblocks of the groups last, and without its log. If most of them are old, xfs_repair makes the
/// filesystem as small as it was, and what is in the new group is lost.
fn a_growth_that_was_cut_short_is_completed(rig: &mut Rig) -> Result<()> {
    let helper = published(rig, &["vol-a"])?;
    helper.ask_all([unbind("vol-a", "vol-a"), unmount_filesystem("vol-a")])?;
    let image = File::options().read(true).write(true).open(rig.pool().image("vol-a"))?;
    let mut old = [0; 512];
    image.read_exact_at(&mut old, GROUP)?;
    let [mount, unmount] = [mount_filesystem("vol-a"), unmount_filesystem("vol-a")];
    helper.ask_all([mount.clone(), grow_filesystem("vol-a", SMALLEST + GROUP), unmount.clone()])?;
    check_image(rig, "vol-a")?;
    for written in 0..4 {
        (1..4 - written).try_for_each(|group| image.write_all_at(&old, group * GROUP))?;
        image.sync_all()?;
        ensure!(written > 2 || check_image(rig, "vol-a").is_err(), "xfs_repair does not mind");
        helper.ask_all([mount.clone(), unmount.clone()])?;
        check_image(rig, "vol-a").with_context(|| format!("{written} of three were written"))?;
    }
    helper.ask(&delete("vol-a")).map(drop)
}
