//! Quotas and room change under a running helper, by what an administrator or another program does: each change is
//! reported while it lasts, and not after.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::Condition;
use bulkhead_tests::cases;
use bulkhead_tests::expect::no_room;
use bulkhead_tests::helper::*;
use bulkhead_tests::observe::quotas;
use bulkhead_tests::pool::{Pool, mount_image, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions, program};
use rustix::fs::{FallocateFlags, fallocate};

cases! {
    quotas_that_are_switched_off_are_reported: Quota + Xfs + OwnPool,
    default_limits_are_reported: Quota + Xfs + OwnPool,
    limits_that_somebody_changed_are_reported_and_set_again: Quota + OwnPool,
    limits_do_not_outlive_a_change_to_no_quotas: Quota + OwnPool,
    a_volume_larger_than_its_size_is_reported: Quota + Xfs + OwnPool,
    what_is_promised_and_taken_by_others_is_reported: Quota + OwnPool,
    a_pool_without_inodes_has_no_room: Bare,
}

const MIB: u64 = 1 << 20;

/// xfs_quota(8), which knows ext4 as well.
fn xfs_quota(rig: &Rig, command: &str) -> Result<()> {
    run(Command::new("xfs_quota").args(["-f", "-x", "-c", command]).arg(&rig.pool().directory))
}

/// Waits until the pool has such a condition, or has none.
fn pool_says(rig: &Rig, what: &str, wanted: Option<fn(&Condition) -> bool>) -> Result<()> {
    let helper = rig.helper()?;
    rig.eventually(10, || {
        let status = helper.pool_status("default")?;
        let conditions = status.conditions.as_slice();
        let is_so = wanted.map_or(conditions.is_empty(), |wanted| conditions.iter().any(wanted));
        ensure!(is_so, "{what}: {conditions:?}");
        Ok(())
    })
}

fn condition_of(rig: &Rig, id: &str) -> Result<Option<Condition>> {
    Ok(rig.helper()?.usage(id, None)?.condition)
}

fn project_of(rig: &Rig) -> Result<quotas::ProjectQuota> {
    let found = quotas::blocks(&rig.pool().directory)?;
    found.first().copied().context("no project has a limit")
}

fn allocate(path: &Path, bytes: u64) -> Result<()> {
    let file = File::create_new(path)?;
    fallocate(&file, FallocateFlags::empty(), 0, bytes).with_context(|| format!("allocate {bytes} bytes"))
}

fn quotas_that_are_switched_off_are_reported(rig: &mut Rig) -> Result<()> {
    for _ in 0..2 {
        pool_says(rig, "at first", None)?;
        xfs_quota(rig, "disable -p")?;
        pool_says(rig, "switched off", Some(|condition| *condition == Condition::QuotasOff))?;
        xfs_quota(rig, "enable -p")?;
    }
    pool_says(rig, "switched on", None)
}

fn default_limits_are_reported(rig: &mut Rig) -> Result<()> {
    for limit in ["bhard=64m", "ihard=100", "bsoft=1m"] {
        xfs_quota(rig, &format!("limit -p -d {limit}"))?;
        pool_says(rig, limit, Some(|condition| *condition == Condition::DefaultLimits))?;
        xfs_quota(rig, "limit -p -d bsoft=0 bhard=0 isoft=0 ihard=0")?;
        pool_says(rig, "without limits", None)?;
    }
    Ok(())
}

fn limits_that_somebody_changed_are_reported_and_set_again(rig: &mut Rig) -> Result<()> {
    rig.helper()?.ask(&create("vol-a", directory_spec(8 * MIB)))?;
    let own = project_of(rig)?;
    ensure!(own.limit == 8 * 1024, "{own:?}");
    for change in ["bhard=4m", "bhard=0", "bsoft=1m", "isoft=2", "ihard=7"] {
        ensure!(condition_of(rig, "vol-a")?.is_none(), "before {change}");
        xfs_quota(rig, &format!("limit -p {change} {}", own.project))?;
        let found = condition_of(rig, "vol-a")?;
        ensure!(matches!(found, Some(Condition::OtherLimits { .. })), "after {change}: {found:?}");
        rig.restart_helper()?;
        ensure!(project_of(rig)? == own, "after {change}: {:?}", project_of(rig)?);
    }
    ensure!(condition_of(rig, "vol-a")?.is_none(), "at the end");
    Ok(())
}

fn limits_do_not_outlive_a_change_to_no_quotas(rig: &mut Rig) -> Result<()> {
    rig.helper()?.ask(&create("vol-a", directory_spec(MIB)))?;
    rig.stop_helper()?;
    rig.pools[0].options = ",quota=none".to_owned();
    rig.start_helper()?;
    let data = rig.pool().volume("vol-a").join("data");
    allocate(&data.join("file"), 4 * MIB).context("the former limit binds")?;
    fs::remove_file(data.join("file"))?;
    rig.stop_helper()?;
    rig.pools[0].options = String::new();
    rig.start_helper()?;
    ensure!(project_of(rig)?.limit == 1024, "{:?}", project_of(rig)?);
    Ok(())
}

/// A quota that is off for a while binds nobody.
fn a_volume_larger_than_its_size_is_reported(rig: &mut Rig) -> Result<()> {
    rig.helper()?.ask(&create("vol-a", directory_spec(MIB)))?;
    let file = rig.pool().volume("vol-a").join("data/file");
    xfs_quota(rig, "disable -p")?;
    allocate(&file, 4 * MIB)?;
    xfs_quota(rig, "enable -p")?;
    let found = condition_of(rig, "vol-a")?;
    ensure!(matches!(found, Some(Condition::Oversized { used }) if used >= 4 * MIB), "{found:?}");
    fs::remove_file(&file)?;
    // XFS frees its blocks a moment later.
    rig.eventually(10, || {
        let found = condition_of(rig, "vol-a")?;
        ensure!(found.is_none(), "{found:?}");
        Ok(())
    })
}

fn what_is_promised_and_taken_by_others_is_reported(rig: &mut Rig) -> Result<()> {
    let helper = rig.helper()?;
    let half = helper.pool_status("default")?.available / 2 / 4096 * 4096;
    helper.ask(&create("vol-a", directory_spec(half)))?;
    pool_says(rig, "at first", None)?;
    let filler = rig.pool().directory.join("Filler");
    allocate(&filler, half + 32 * MIB)?;
    pool_says(rig, "filled", Some(|condition| matches!(condition, Condition::Overpromised { .. })))?;
    no_room(helper.request(&create("vol-b", directory_spec(MIB)))?)?;
    fs::remove_file(&filler)?;
    pool_says(rig, "emptied", None)?;
    Ok(())
}

/// Only ext4 has a fixed number of inodes.
fn a_pool_without_inodes_has_no_room(rig: &mut Rig) -> Result<()> {
    let run_options = RunOptions { pool_fs: PoolFilesystem::Ext4, ..rig.run_options.clone() };
    let directory = rig.work().join("pools/few");
    let image = directory.with_extension("disk");
    fs::create_dir_all(&directory)?;
    File::create_new(&image)?.set_len(64 * MIB)?;
    let quotas: &[&str] =
        if run_options.enforces_sizes() { &["-O", "quota,project", "-E", "quotatype=prjquota"] } else { &[] };
    run(Command::new("mkfs.ext4").args(["-q", "-N", "64"]).args(quotas).arg(&image))?;
    mount_image(&run_options, &image, &directory)?;
    run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&directory))?;
    rig.pools = vec![Pool::mounted(&run_options, &directory, "default")];
    let helper = rig.started_helper()?;
    let room = helper.pool_status("default")?.available;
    let files = directory.join("Files");
    fs::create_dir(&files)?;
    while File::create_new(files.join(fs::read_dir(&files)?.count().to_string())).is_ok() {}
    pool_says(rig, "without inodes", Some(|condition| *condition == Condition::NoInodes))?;
    let status = helper.pool_status("default")?;
    ensure!((status.available, status.largest_volume) == (0, 0), "{status:?}");
    ensure!(no_room(helper.request(&create("vol-a", directory_spec(MIB)))?)? == 0, "there is room");
    fs::remove_dir_all(&files)?;
    rig.eventually(5, || {
        helper.check_status("default", |status| {
            status.available == room && !status.conditions.as_slice().contains(&Condition::NoInodes)
        })
    })
}
