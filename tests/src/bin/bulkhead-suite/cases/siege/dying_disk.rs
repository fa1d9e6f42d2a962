//! A disk that dies between a change and its sync: nothing is answered as done that a power cut could undo, and repeating
//! the request makes it no more true.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Inodes, Request, Response, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::ids::own;
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::{Pool, format_image, mount_image, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions, program};
use bulkhead_tests::strace::Tracer;
use bulkhead_tests::wait;
use rustix::fs::{FallocateFlags, fallocate};

cases! {
    an_xfs_that_shuts_down_before_a_sync: Bare,
    an_ext4_that_shuts_down_before_a_sync: Bare,
    an_xfs_that_shuts_down_after_a_sync_and_before_its_proof: Bare,
    an_ext4_that_shuts_down_after_a_sync_and_before_its_proof: Bare,
    an_xfs_whose_disk_takes_no_more_writes: Bare + Host,
    an_ext4_whose_disk_takes_no_more_writes: Bare,
    a_growth_that_cannot_be_undone_stays_promised: Bare,
}

const SIZE: u64 = 1 << 20;

fn an_xfs_that_shuts_down_before_a_sync(rig: &mut Rig) -> Result<()> {
    shuts_down(rig, PoolFilesystem::Xfs, "fsync")
}

fn an_ext4_that_shuts_down_before_a_sync(rig: &mut Rig) -> Result<()> {
    shuts_down(rig, PoolFilesystem::Ext4, "fsync")
}

fn an_xfs_that_shuts_down_after_a_sync_and_before_its_proof(rig: &mut Rig) -> Result<()> {
    shuts_down(rig, PoolFilesystem::Xfs, "fsetxattr")
}

fn an_ext4_that_shuts_down_after_a_sync_and_before_its_proof(rig: &mut Rig) -> Result<()> {
    shuts_down(rig, PoolFilesystem::Ext4, "fsetxattr")
}

/// Each request that waits for the disk.
fn requests() -> Result<[(&'static str, Request); 6]> {
    let discard = Request::DeleteUnused { volume: volume(own("vol-a")) };
    let quota =
        Request::SetQuota { volume: volume(own("vol-a")), size: bytes(2 * SIZE), inodes: Inodes::try_from(8192)? };
    Ok([
        ("create", create(own("vol-c"), directory_spec(SIZE))),
        ("create-image", create(own("vol-c"), image_spec(SIZE))),
        ("delete", delete(own("vol-a"))),
        ("delete-unused", discard),
        ("grow-image", Request::GrowImage { volume: volume(own("vol-b")), size: bytes(2 * SIZE) }),
        ("set-quota", quota),
    ])
}

/// For each request, the filesystem is shut down while the helper is in that call.
fn shuts_down(rig: &mut Rig, filesystem: PoolFilesystem, call: &str) -> Result<()> {
    let run_options = RunOptions { pool_fs: filesystem, ..rig.run_options.clone() };
    rig.helper_flags.push("--seccomp=log".to_owned());
    for (name, request) in requests()? {
        let directory = rig.work().join("pools").join(name);
        let pool = Pool::make(&run_options, rig.templates(), &directory, "default")?;
        rig.pools = vec![pool];
        rig.start_helper()?;
        let outcome = shut_down_during(rig, &request, call).with_context(|| name);
        rig.kill_helper()?;
        rig.eventually(10, || mounts::unmount_all(&directory))?;
        rig.pools.clear();
        outcome?;
    }
    rig.helper_flags.clear();
    rig.start_helper()
}

fn shut_down_during(rig: &mut Rig, request: &Request, call: &str) -> Result<()> {
    let (helper, directory) = (rig.helper()?, rig.pool().directory.clone());
    helper.ask_all([create(own("vol-a"), directory_spec(SIZE)), create(own("vol-b"), image_spec(SIZE))])?;
    let process = rig.helper_pid()?;
    let delayed = Tracer::delay(process, call, rig.patience(Duration::from_secs(30)))?;
    helper.send(&encode(request)?)?;
    ensure!(!helper.is_answered(Duration::from_millis(300))?, "it does not wait for {call}");
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&directory))?;
    drop(delayed);
    let answer: Response = decode(&helper.receive()?.context("the connection is closed")?)?;
    ensure!(answer.is_err(), "the disk was dead, and the answer is {answer:?}");
    for number in 0..5 {
        let answer = rig.helper()?.request(request)?;
        ensure!(answer.is_err(), "repeated for the {number}th time, it is answered with {answer:?}");
    }
    Ok(())
}

fn an_xfs_whose_disk_takes_no_more_writes(rig: &mut Rig) -> Result<()> {
    takes_no_more_writes(rig, PoolFilesystem::Xfs)
}

fn an_ext4_whose_disk_takes_no_more_writes(rig: &mut Rig) -> Result<()> {
    takes_no_more_writes(rig, PoolFilesystem::Ext4)
}

/// A disk in memory, of which only the blocks that were written take any room. Once the memory is full, only those can be
/// written again: the journal's next block cannot.
struct Disk {
    memory: PathBuf,
    image: PathBuf,
}

impl Disk {
    fn make(rig: &Rig, run_options: &RunOptions) -> Result<Self> {
        let memory = rig.work().join("memory");
        fs::create_dir(&memory)?;
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=96m", "none"]).arg(&memory))?;
        let image = memory.join("pool.disk");
        format_image(run_options, rig.templates(), &image)?;
        Ok(Self { memory, image })
    }

    fn die(&self) -> Result<()> {
        let filler = File::create(self.memory.join("filler"))?;
        let (mut end, mut step) = (0, 1 << 26);
        while step >= 4096 {
            match fallocate(&filler, FallocateFlags::empty(), end, step) {
                Ok(()) => end += step,
                Err(_) => step /= 2,
            }
        }
        Ok(())
    }

    fn recover(&self) -> Result<()> {
        Ok(fs::remove_file(self.memory.join("filler"))?)
    }
}

fn takes_no_more_writes(rig: &mut Rig, filesystem: PoolFilesystem) -> Result<()> {
    let run_options = RunOptions { pool_fs: filesystem, ..rig.run_options.clone() };
    for removes in [false, true] {
        let disk = Disk::make(rig, &run_options)?;
        let directory = rig.work().join("pools/memory");
        fs::create_dir_all(&directory)?;
        mount_image(&run_options, &disk.image, &directory)?;
        run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&directory))?;
        rig.pools = vec![Pool::mounted(&run_options, &directory, "default")];
        rig.start_helper()?;
        let done = until_dead(rig, &disk, removes);
        rig.kill_helper()?;
        let patience = rig.patience(Duration::from_secs(10));
        wait::until(patience, || mounts::unmount_all(&directory))?;
        disk.recover()?;
        // What was answered as done is on the disk, except that the loop driver takes a write that was cut short for a
        // whole one: the last answer before the first error may rest on that.
        let kept = done.and_then(|done| {
            mount_image(&run_options, &disk.image, &directory)?;
            for id in done.iter().take(done.len().saturating_sub(1)) {
                let is_there = directory.join(id).join("data").is_dir();
                ensure!(
                    is_there != removes,
                    "{id} was answered as {}, of {} such answers",
                    if removes { "deleted" } else { "created" },
                    done.len()
                );
            }
            wait::until(patience, || mounts::unmount_all(&directory))
        });
        wait::until(patience, || mounts::unmount_all(&disk.memory))?;
        fs::remove_dir(&disk.memory)?;
        rig.pools.clear();
        kept.with_context(|| if removes { "deletions" } else { "creations" })?;
    }
    rig.start_helper()
}

/// Creates or deletes volumes until that fails, and returns which were answered as done while the disk was dead. A few
/// may be: the journal's last block may have room left.
fn until_dead(rig: &Rig, disk: &Disk, removes: bool) -> Result<Vec<String>> {
    const MOST: usize = 400;
    let helper = rig.helper()?;
    let ids: Vec<String> = (0..MOST).map(|number| own(&format!("vol-{number}")).to_owned()).collect();
    if removes {
        ids.iter().try_for_each(|id| helper.ask(&create(id, directory_spec(SIZE / 256))).map(drop))?;
    }
    let request = |id: &str| if removes { delete(id) } else { create(id, directory_spec(SIZE / 256)) };
    disk.die()?;
    let mut done = Vec::new();
    for id in &ids {
        if helper.request(&request(id))?.is_ok() {
            done.push(id.clone());
            continue;
        }
        for number in 0..5 {
            let answer = helper.request(&request(id))?;
            ensure!(answer.is_err(), "repeated for the {number}th time, {id} is answered with {answer:?}");
        }
        return Ok(done);
    }
    anyhow::bail!("{MOST} requests have succeeded on a disk that takes no more writes")
}

/// Neither the new record is written nor the old one: either size may be found after a power cut.
fn a_growth_that_cannot_be_undone_stays_promised(rig: &mut Rig) -> Result<()> {
    rig.helper_flags.push("--seccomp=log".to_owned());
    let helper = rig.started_helper()?;
    let inodes = Inodes::try_from(8192)?;
    let image = |size| Request::GrowImage { volume: volume(own("vol-b")), size: bytes(size) };
    let directory = |size| Request::SetQuota { volume: volume(own("vol-a")), size: bytes(size), inodes };
    helper.ask_all([create(own("vol-a"), directory_spec_with(SIZE, 8192)), create(own("vol-b"), image_spec(SIZE))])?;
    let promised = |rig: &Rig| Ok::<_, anyhow::Error>(rig.helper()?.pool_status("default")?.promised);
    let before = promised(rig)?;
    for grow in [&image as &dyn Fn(u64) -> Request, &directory] {
        let begun = promised(rig)?;
        for (tried, then) in [(2, 2), (4, 3), (5, 3)] {
            let broken = Tracer::fail(rig.helper_pid()?, "fsetxattr", "EIO", "1+")?;
            for _ in 0..2 {
                let answer = rig.helper()?.request(&grow(tried * SIZE))?;
                ensure!(answer.is_err(), "{answer:?}");
                ensure!(promised(rig)? == begun + (tried - 1) * SIZE, "{} from {begun}", promised(rig)?);
            }
            drop(broken);
            // The same size, a smaller one, or the one that it has completes it.
            ensure!(rig.helper()?.ask(&grow(then * SIZE))? == bulkhead_protocol::Reply::Size(bytes(then * SIZE)));
            ensure!(promised(rig)? == begun + (then - 1) * SIZE, "{} from {begun}", promised(rig)?);
        }
    }
    ensure!(promised(rig)? == before + 4 * SIZE && fs::metadata(rig.pool().image(own("vol-b")))?.len() == 3 * SIZE);
    rig.restarted_helper()?.ask_all([delete(own("vol-a")), delete(own("vol-b"))])
}
