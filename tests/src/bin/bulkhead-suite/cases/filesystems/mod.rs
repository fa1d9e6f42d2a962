//! Filesystems in images: their life, their kinds, their damages, restarts, and the process that mounts them.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::case::Case;
use bulkhead_tests::helper::{HelperClient, delete, unbind, unmount_filesystem};
use bulkhead_tests::observe::processes;
use bulkhead_tests::pool::{Pool, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::RunOptions;

mod answers;
mod crashes;
mod damage;
mod forged;
pub mod held;
mod kinds;
mod labels;
mod life;
mod mounter;
mod pod;
mod restarts;

/// All of them.
pub fn cases() -> Vec<Case> {
    [
        answers::cases(),
        crashes::cases(),
        damage::cases(),
        forged::cases(),
        held::cases(),
        kinds::cases(),
        labels::cases(),
        life::cases(),
        mounter::cases(),
        pod::cases(),
        restarts::cases(),
    ]
    .concat()
}

/// The user that mounts. Its processes are limited, so each test has one of its own: each is a process.
pub fn mounter_uid() -> u32 {
    60_000 + std::process::id() % 5_000
}

/// The size of a volume.
pub const SIZE: u64 = 320 << 20;

/// Starts the helper on such a pool.
fn start(rig: &mut Rig, filesystems: u32) -> Result<()> {
    make_pool(rig, filesystems)?;
    rig.start_helper()
}

/// Makes a pool with room for several filesystems, which is configured for so many.
pub fn make_pool(rig: &mut Rig, filesystems: u32) -> Result<()> {
    make_pool_of(rig, 2048, filesystems)
}

/// Makes a pool of this size, which is configured for so many filesystems.
pub fn make_pool_of(rig: &mut Rig, pool_mebibytes: u64, filesystems: u32) -> Result<()> {
    let run_options = RunOptions { pool_mebibytes, ..rig.run_options.clone() };
    let templates = rig.work().join("templates");
    fs::create_dir_all(&templates)?;
    let mut pool = Pool::make(&run_options, &templates, &rig.work().join("pools/default"), "default")?;
    pool.options.push_str(&format!(",filesystems={filesystems}"));
    rig.pools.push(pool);
    rig.helper_flags = helper_flags();
    Ok(())
}

/// Returns what a helper needs to be told where a pool is configured for them.
pub fn helper_flags() -> Vec<String> {
    ["--mounter-uid".to_owned(), mounter_uid().to_string()].into()
}

/// Checks that the filesystem in a volume's image, which is not mounted, is without fault.
pub fn check_image(rig: &Rig, id: &str) -> Result<()> {
    run(Command::new("xfs_repair").args(["-n", "-f"]).arg(rig.pool().image(id)))
}

/// Ends the lives of volumes, each of which is published at the target of its name, and checks what they leave.
pub fn end(rig: &Rig, helper: &HelperClient, ids: &[&str]) -> Result<()> {
    for id in ids {
        helper.ask_all([unbind(id, id), unmount_filesystem(id)])?;
        check_image(rig, id)?;
        helper.ask(&delete(id))?;
    }
    Ok(())
}

/// The process that mounts.
fn mounter(rig: &Rig) -> Result<i32> {
    mounter_of(rig.helper_pid()?)
}

/// `struct msghdr` at this address, with all that it points to: a packet without descriptors.
pub fn message(address: u64, text: &[u8]) -> Result<Vec<u8>> {
    let (vector, content) = (address + 56, address + 72);
    let words = [0, 0, vector, 1, 0, 0, 0, content, u64::try_from(text.len())?];
    Ok([words.map(u64::to_ne_bytes).concat(), text.to_vec()].concat())
}

/// The process that mounts, once it is confined.
fn confined(rig: &Rig) -> Result<i32> {
    rig.eventually(5, || {
        let pid = mounter(rig)?;
        processes::check_filtered(pid).map(|()| pid)
    })
}

/// That of a helper.
pub fn mounter_of(helper: i32) -> Result<i32> {
    let is_one = |pid: i32| processes::status(pid, "Uid").is_ok_and(|users| users.contains(&mounter_uid().to_string()));
    let found = processes::descendants(helper)?.into_iter().map(|process| process.pid).find(|pid| is_one(*pid));
    found.context("there is no mounter")
}

/// Checks that nothing is left of a volume that is not mounted: no loop device of its image.
pub fn check_detached(rig: &Rig) -> Result<()> {
    let left = bulkhead_tests::observe::loops::backed_by(&rig.pool().device()?)?;
    ensure!(left.is_empty(), "loop devices are left: {left:?}");
    Ok(())
}
