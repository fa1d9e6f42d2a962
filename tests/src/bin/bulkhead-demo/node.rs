//! The node that the demonstration sets up: a rig in a place that outlives a reboot.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use bulkhead_tests::observe::{loops, mounts};
use bulkhead_tests::pool::{Pool, run};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::{Phase, Place, PoolFilesystem, RunOptions, program};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};

/// Everything that the demonstration creates is here, except for the virtual machine's own pool.
pub const STATE: &str = "/var/lib/bulkhead-demo";

/// The node.
pub struct Node {
    /// Both processes and their directories.
    pub rig: Rig,
    /// On this host rather than in a virtual machine.
    pub here: bool,
}

impl Node {
    /// Lays out the directories and, for a new demonstration, makes the pool.
    pub fn new(here: bool, phase: Phase) -> Result<Self> {
        let state = Path::new(STATE);
        if phase == Phase::BeforeReboot && state.exists() {
            tidy(here).context("tidy up after an earlier demonstration")?;
        }
        let place = if here { Place::Host } else { Place::Vm };
        let run_options = RunOptions { pool_mebibytes: 1024, ..RunOptions::ordinary(place, PoolFilesystem::Xfs) };
        let mut rig = Rig::new(&run_options, state, state)?;
        rig.node = "demo".to_owned();
        let directory = pool_directory(here);
        if here && mounts::at(state)?.is_empty() {
            // Mounts made by the helper must be visible outside its namespace. On a node with systemd every mount is
            // shared; elsewhere this directory becomes a shared mount.
            mount_bind(state, state)?;
            mount_change(state, MountPropagationFlags::SHARED)?;
        }
        if here && phase == Phase::BeforeReboot {
            rig.add_pool("default")?;
        } else {
            rig.pools.push(Pool::mounted(&run_options, &directory, "default"));
        }
        if !directory.join(".bulkhead").exists() {
            run(Command::new(program("bulkhead-setup")?).arg("init-pool").arg(&directory))?;
        }
        Ok(Self { rig, here })
    }

    /// The socket that `bulkheadctl` talks to.
    pub fn endpoint(&self) -> PathBuf {
        self.rig.kubelet.csi_socket()
    }

    pub fn target(&self, name: &str) -> PathBuf {
        self.rig.target(name)
    }

    pub fn pool(&self) -> &Pool {
        self.rig.pool()
    }

    /// Returns whether writing beyond a volume's size fails.
    pub fn enforces_sizes(&self) -> bool {
        self.rig.run_options.enforces_sizes()
    }
}

fn pool_directory(here: bool) -> PathBuf {
    if here { Path::new(STATE).join("pools/default") } else { PathBuf::from("/pools/xfs") }
}

/// Removes everything that the demonstration has created: mounts, loop devices, files.
pub fn tidy(here: bool) -> Result<()> {
    let (state, pool) = (Path::new(STATE), pool_directory(here));
    let mounted = !mounts::at(&pool)?.is_empty();
    let looped = if mounted { loops::backed_by(&Pool::existing(&pool, "default").device()?)? } else { Vec::new() };
    mounts::unmount_all(&state.join("publish"))?;
    looped.iter().try_for_each(|device| loops::detach(&device.path))?;
    mounts::unmount_all(state)?;
    fs::remove_dir_all(state).with_context(|| format!("remove {STATE}"))
}
