//! A pool whose filesystem shuts down after a disk error: its volumes are unpublished all the same.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{Condition, ErrorKind, PoolStatus};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests;
use bulkhead_tests::csi::v1::GetCapacityRequest;
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::*;
use bulkhead_tests::leaks;
use bulkhead_tests::monitoring;
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::{Pool, mount_anew, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions};
use bulkhead_tests::wait;

cases! {
    a_pool_that_has_shut_down_is_unpublished_and_mended: Bare,
    a_volume_of_a_pool_that_has_shut_down_is_abnormal: Bare,
}

const SIZE: u64 = 16 << 20;

fn a_pool_that_has_shut_down_is_unpublished_and_mended(rig: &mut Rig) -> Result<()> {
    for filesystem in [PoolFilesystem::Xfs, PoolFilesystem::Ext4] {
        let run_options = RunOptions { pool_fs: filesystem, ..rig.run_options.clone() };
        let directory = rig.work().join("pools").join(filesystem.name());
        rig.pools = vec![Pool::make(&run_options, rig.templates(), &directory, filesystem.name())?];
        rig.start_helper()?;
        shut_down(rig, &run_options).with_context(|| filesystem.name())?;
        leaks::check(rig)?;
        rig.kill_helper()?;
        mounts::unmount_all(&directory)?;
        // The pool has already been checked for leftovers; its directory is no longer a pool.
        rig.pools.clear();
    }
    Ok(())
}

fn a_volume_of_a_pool_that_has_shut_down_is_abnormal(rig: &mut Rig) -> Result<()> {
    rig.frontend_flags.extend(monitoring::FLAGS.map(Into::into));
    let csi = rig.started_csi()?;
    rig.create(&csi, "vol-a", requests::MIB, requests::mount())?;
    let normal = "bulkhead_pool_abnormal_volumes{pool=\"default\"} 0";
    let patience = rig.patience(Duration::from_secs(60));
    wait::until(patience, || {
        let metrics = monitoring::get(rig, "/metrics")?.1;
        ensure!(metrics.contains(normal) && !metrics.contains("condition=\"shut_down\""), "{metrics}");
        Ok(())
    })?;
    run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&rig.pool().directory))?;
    // A scheduler's request brings it out at once; otherwise it is noticed within half a minute.
    csi.get_capacity(GetCapacityRequest::default())?;
    wait::until(patience, || {
        let metrics = monitoring::get(rig, "/metrics")?.1;
        ensure!(metrics.contains("bulkhead_pool_abnormal_volumes{pool=\"default\"} 1"), "{metrics}");
        ensure!(metrics.contains("bulkhead_pool_condition{pool=\"default\",condition=\"shut_down\"} 1"), "{metrics}");
        let log = fs::read_to_string(rig.logs().join("frontend.log"))?;
        ensure!(log.contains("the pool reports: the pool's filesystem has shut down"), "{log}");
        // One line for the pool, not one for each of its volumes.
        ensure!(!log.contains("the volume is abnormal"), "{log}");
        Ok(())
    })?;
    let directory = rig.pool().directory.clone();
    rig.abandon();
    wait::until(patience, || mounts::unmount_all(&directory))?;
    rig.pools.clear();
    Ok(())
}

fn shut_down(rig: &mut Rig, run_options: &RunOptions) -> Result<()> {
    let helper = rig.helper()?;
    let (pool, directory) = (rig.pool().name.clone(), rig.pool().directory.clone());
    let device = rig.pool().device()?;
    helper.ask_all([create_in(&pool, "vol-a", directory_spec(SIZE)), create_in(&pool, "vol-b", image_spec(SIZE))])?;
    helper.ask_all([bind("vol-a", "a"), attach("vol-b"), make_device("vol-b", "b")])?;
    let mut file = File::create(rig.target("a/file"))?;
    file.write_all(b"content")?;
    file.sync_all()?;
    drop(file);

    // The emptier is at work before the disk fails, and no longer on its way into its jail.
    let patience = rig.patience(Duration::from_secs(15));
    helper.ask_all([create_in(&pool, "vol-c", directory_spec(SIZE)), delete("vol-c")])?;
    wait::until(patience, || {
        let left = rig.pool().entries()?;
        ensure!(left.iter().all(|name| !name.starts_with('.')), "{left:?}");
        Ok(())
    })?;

    run(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&directory))?;
    let status = |helper: &HelperClient| helper.pool_status(&pool);
    let says_so = |status: &PoolStatus| status.conditions.as_slice().contains(&Condition::ShutDown);
    let found = status(&helper)?;
    ensure!(says_so(&found) && found.available == 0 && found.largest_volume == 0, "{found:?}");
    for (id, path) in [("vol-a", "a"), ("vol-b", "b")] {
        let usage = helper.usage(id, Some(target("work", path)))?;
        ensure!(usage.condition == Some(Condition::ShutDown), "{usage:?}");
    }
    // It is still published, and publishing again after a kubelet's restart succeeds.
    helper.ask(&bind("vol-a", "a"))?;
    denied(helper.request(&delete("vol-a"))?, ErrorKind::InUse, "vol-a")?;
    for _ in 0..2 {
        helper.ask_all([unbind("vol-a", "a"), remove_device("vol-b", "b"), detach("vol-b")])?;
    }
    ensure!(mounts::below(&rig.publish_directory())?.is_empty());
    ensure!(fs::read_dir(rig.publish_directory())?.count() == 0, "targets are left");
    ensure!(loops::backed_by(&device)?.is_empty(), "the device is left");

    // The way out: only the helper itself still holds the filesystem.
    rig.kill_helper()?;
    mount_anew(run_options, &directory)?;
    let helper = rig.started_helper()?;
    let found = status(&helper)?;
    ensure!(!says_so(&found) && found.available > 0, "{found:?}");
    helper.ask(&bind("vol-a", "a"))?;
    ensure!(fs::read(rig.target("a/file"))? == b"content");
    helper.ask(&unbind("vol-a", "a"))?;
    helper.ask_all(["vol-a", "vol-b"].map(delete))
}
