//! A test may leave nothing behind: no mount, no loop device, no target, no volume, no project id, no socket.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::kubelet::Kubelet;
use crate::observe::{loops, mounts, quotas};
use crate::pace;
use crate::pool::Pool;
use crate::rig::Rig;
use crate::run_options::RunOptions;
use crate::wait;

/// Checks, while the processes under test are still running, that they have left nothing behind.
pub fn check(rig: &Rig) -> Result<()> {
    check_mounts(&rig.publish_directory())?;
    let targets = entries(&rig.publish_directory())?;
    ensure!(targets.is_empty(), "targets are left over: {targets:?}");
    check_node(&rig.run_options, &rig.kubelet, &rig.pools)?;
    check_sockets(rig)
}

/// Checks, while the processes under test are still running, that there is nothing left in a kubelet's directory and in
/// pools.
pub fn check_node(run_options: &RunOptions, kubelet: &Kubelet, pools: &[Pool]) -> Result<()> {
    check_mounts(kubelet.root())?;
    kubelet.check_no_target_left()?;
    for pool in pools {
        let left = loops::backed_by(&pool.device()?)?;
        ensure!(left.is_empty(), "loop devices are left over: {left:?}");
    }
    // Deleted volumes are emptied in the background.
    let patience = pace::patience(Duration::from_secs(15));
    wait::until(patience, || pools.iter().try_for_each(|pool| check_pool(run_options, pool)))
}

/// Checks, after the processes under test have ended, that they have left nothing behind.
pub fn check_stopped(rig: &Rig) -> Result<()> {
    check_mounts(&rig.publish_directory()).and_then(|()| check_mounts(rig.kubelet.root())).context("at the end")?;
    check_sockets(rig)
}

/// Checks, after the pools were unmounted, that nothing keeps their disks in use: not even of those that the test has given up.
pub fn check_unmounted(rig: &Rig) -> Result<()> {
    wait::until(rig.patience(Duration::from_secs(15)), || {
        let disks = loops::all()?.into_iter().filter(|found| Path::new(&found.backing_file).starts_with(rig.work()));
        let left = disks.map(|found| found.path).collect::<Vec<_>>();
        ensure!(left.is_empty(), "disks of pools are left in use: {left:?}");
        Ok(())
    })
}

fn check_mounts(directory: &Path) -> Result<()> {
    let left = mounts::below(directory)?;
    ensure!(left.is_empty(), "mounts are left over: {left:?}");
    Ok(())
}

fn check_pool(run_options: &RunOptions, pool: &Pool) -> Result<()> {
    let left = pool.entries()?;
    ensure!(left.is_empty(), "pool {} still holds {left:?}", pool.name);
    if run_options.enforces_sizes() {
        let (blocks, inodes) = (quotas::blocks(&pool.directory)?, quotas::inodes(&pool.directory)?);
        ensure!(blocks.is_empty(), "projects are left over in pool {}: {blocks:?} KiB", pool.name);
        ensure!(inodes.is_empty(), "projects are left over in pool {}: {inodes:?} inodes", pool.name);
    }
    Ok(())
}

/// Three sockets are known by name; any other, in particular a half-made one, is a leftover.
fn check_sockets(rig: &Rig) -> Result<()> {
    let known = [rig.helper_socket(), rig.kubelet.csi_socket(), rig.kubelet.registration_socket()];
    let mut found = Vec::new();
    for directory in ["kubelet/plugins", "kubelet/plugins_registry", "run", "publish"] {
        sockets_below(&rig.work().join(directory), &mut found)?;
    }
    found.retain(|path| !known.contains(path));
    ensure!(found.is_empty(), "sockets are left over: {found:?}");
    Ok(())
}

fn sockets_below(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sockets_below(&entry.path(), found)?;
        } else if kind.is_socket() {
            found.push(entry.path());
        }
    }
    Ok(())
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    Ok(fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?)
}
