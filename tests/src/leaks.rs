//! A test may leave nothing behind: no mount, no loop device, no target, no volume, no project id, no socket.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::observe::{loops, mounts, quotas};
use crate::rig::Rig;
use crate::wait;

/// Checks, while the processes under test are still running, that they have left nothing behind.
pub fn check(rig: &Rig) -> Result<()> {
    for directory in [rig.publish_directory(), rig.kubelet.root().to_owned()] {
        let left = mounts::below(&directory)?;
        ensure!(left.is_empty(), "mounts are left over: {left:?}");
    }
    rig.kubelet.check_no_target_left()?;
    let targets = entries(&rig.publish_directory())?;
    ensure!(targets.is_empty(), "targets are left over: {targets:?}");
    for pool in &rig.pools {
        let left = loops::backed_by(&pool.device()?)?;
        ensure!(left.is_empty(), "loop devices are left over: {left:?}");
    }
    check_sockets(rig)?;
    // Deleted volumes are emptied in the background.
    wait::until(rig.patience(Duration::from_secs(15)), || check_pools(rig))
}

/// Checks, after the processes under test have ended, that they have left nothing behind.
pub fn check_stopped(rig: &Rig) -> Result<()> {
    for directory in [rig.publish_directory(), rig.kubelet.root().to_owned()] {
        let left = mounts::below(&directory)?;
        ensure!(left.is_empty(), "mounts are left over at the end: {left:?}");
    }
    check_sockets(rig)
}

fn check_pools(rig: &Rig) -> Result<()> {
    for pool in &rig.pools {
        let left = pool.entries()?;
        ensure!(left.is_empty(), "pool {} still holds {left:?}", pool.name);
        if rig.run_options.enforces_sizes() {
            let (blocks, inodes) = (quotas::blocks(&pool.directory)?, quotas::inodes(&pool.directory)?);
            ensure!(blocks.is_empty(), "projects are left over in pool {}: {blocks:?} KiB", pool.name);
            ensure!(inodes.is_empty(), "projects are left over in pool {}: {inodes:?} inodes", pool.name);
        }
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
