//! A tenant moves the directory that is mounted as a subPath ever deeper: its path is a field of the host's mount table.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::helper::*;
use bulkhead_tests::rig::Rig;
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat, renameat};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

cases! {
    a_very_long_path_in_the_mount_table_holds_up_no_other_volume: Host + Slow,
}

const LEVELS: usize = 30_000;

fn a_very_long_path_in_the_mount_table_holds_up_no_other_volume(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    helper.ask(&create("vol-a", directory_spec(256 << 20)))?;
    helper.ask(&create("vol-b", directory_spec(1 << 20)))?;
    helper.ask(&bind("vol-a", "a"))?;
    let (data, sub) = (rig.target("a"), rig.work().join("subpath"));
    fs::create_dir(data.join("sub"))?;
    fs::create_dir(&sub)?;
    mount_bind(data.join("sub"), &sub)?;
    // Built from its end: each new directory takes in the one before.
    let name = "d".repeat(250);
    let top = openat(CWD, &data, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())?;
    for level in 0..LEVELS {
        let next = format!("{level}");
        mkdirat(&top, &*next, Mode::RWXU)?;
        let inside = if level == 0 { "sub".to_owned() } else { format!("{}", level - 1) };
        renameat(&top, &*inside, &top, format!("{next}/{name}"))?;
    }
    let begun = Instant::now();
    let table = fs::read("/proc/self/mountinfo")?;
    println!("the table has {} bytes, read in {:?}", table.len(), begun.elapsed());
    let begun = Instant::now();
    let deleted = helper.ask(&delete("vol-b"));
    let deletion = begun.elapsed();
    let begun = Instant::now();
    rig.kill_helper()?;
    let started = rig.start_helper();
    let start = begun.elapsed();
    unmount(&sub, UnmountFlags::DETACH)?;
    drop(top);
    if started.is_err() {
        rig.abandon();
        rig.start_helper()?;
    }
    let helper = rig.helper()?;
    helper.ask_all([unbind("vol-a", "a"), delete("vol-a")])?;
    println!("a deletion of another volume took {deletion:?}, a start {start:?}: {started:?}");
    deleted?;
    started?;
    let limit = rig.patience(Duration::from_secs(2));
    ensure!(deletion < limit && start < limit, "a deletion took {deletion:?}, a start {start:?}");
    // The emptier rests most of the time.
    rig.eventually(150, || {
        let left = rig.pool().entries()?;
        ensure!(left.is_empty(), "the pool still holds {left:?}");
        Ok(())
    })
}
