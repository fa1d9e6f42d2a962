//! Where a suite runs, and the filesystem of its pools.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use tempfile::TempDir;

use crate::pace::Pace;

/// The place that the suite runs in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// This machine, each test in a mount namespace of its own. Pools are without quotas: sizes are not enforced.
    Host,
    /// The virtual machine, in its root namespace, with project quotas.
    Vm,
}

/// A pool's filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PoolFilesystem {
    /// XFS.
    Xfs,
    /// ext4.
    Ext4,
}

/// Which half of a test that a reboot interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Phase {
    /// Publish volumes and leave them published.
    BeforeReboot,
    /// Find the volumes again.
    AfterReboot,
}

/// Large enough for the tests.
const POOL_MEBIBYTES: u64 = 512;

/// What one run is about, and where.
#[derive(Args, Clone, Debug)]
pub struct RunOptions {
    /// Where this runs
    #[arg(long, default_value = "host")]
    pub place: Place,
    /// Filesystem of the pools
    #[arg(long, default_value = "xfs")]
    pub pool_fs: PoolFilesystem,
    /// Run what takes too long for every run, too
    #[arg(long)]
    pub long: bool,
    /// In the machine, run every test, and not only those that depend on the kernel or the filesystem
    #[arg(long)]
    pub everything: bool,
    /// Run one half of the tests that a reboot interrupts, and nothing else
    #[arg(long)]
    pub phase: Option<Phase>,
    /// The API server is older than Kubernetes 1.36: it does not label claims and volumes, and may not know all fields
    #[arg(long)]
    pub older_kubernetes: bool,
    /// Print the time of each test at the end, and not only of the slowest ones
    #[arg(long)]
    pub each_time: bool,
    /// The pool that the tests in one slot share, one after another; set by the run for its tests.
    #[arg(long, hide = true)]
    pub shared_pool: Option<PathBuf>,
    /// The pools of all slots.
    #[arg(skip)]
    pub shared_pools: Vec<PathBuf>,
    /// Where it is told how slow this machine is; measured by the run for its tests.
    #[arg(long, hide = true)]
    pub pace: Option<PathBuf>,
    /// The control plane that the run has started; set by the run for its tests.
    #[arg(long, hide = true)]
    pub control_plane: Option<PathBuf>,
    /// The size of the pools' filesystems. XFS refuses anything smaller than 300 MiB.
    #[arg(skip = POOL_MEBIBYTES)]
    pub pool_mebibytes: u64,
}

impl Place {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Vm => "vm",
        }
    }

    /// Returns where scratch files go: on a disk in both places.
    fn scratch(self) -> &'static Path {
        Path::new(match self {
            Self::Host => "/tmp",
            Self::Vm => "/var/lib",
        })
    }

    /// Makes a directory for scratch files, which is removed when the value is dropped.
    pub fn make_scratch(self) -> Result<TempDir> {
        let scratch = tempfile::Builder::new().prefix("bulkhead-").tempdir_in(self.scratch())?;
        // The frontend's user must be able to traverse it.
        fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755))?;
        Ok(scratch)
    }
}

impl PoolFilesystem {
    /// The filesystem's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xfs => "xfs",
            Self::Ext4 => "ext4",
        }
    }

    /// The other filesystem.
    pub fn other(self) -> Self {
        match self {
            Self::Xfs => Self::Ext4,
            Self::Ext4 => Self::Xfs,
        }
    }
}

impl Phase {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::BeforeReboot => "before-reboot",
            Self::AfterReboot => "after-reboot",
        }
    }
}

impl RunOptions {
    /// An ordinary run on this host.
    pub fn on_host(pool_fs: PoolFilesystem) -> Self {
        Self::ordinary(Place::Host, pool_fs)
    }

    /// An ordinary run.
    pub fn ordinary(place: Place, pool_fs: PoolFilesystem) -> Self {
        Self {
            place,
            pool_fs,
            long: false,
            everything: false,
            phase: None,
            older_kubernetes: false,
            each_time: false,
            shared_pool: None,
            shared_pools: Vec::new(),
            pace: None,
            control_plane: None,
            pool_mebibytes: POOL_MEBIBYTES,
        }
    }

    /// The flags that give another process of this program these options.
    pub fn flags(&self) -> Vec<OsString> {
        let mut flags: Vec<OsString> =
            ["--place", self.place.name(), "--pool-fs", self.pool_fs.name()].map(Into::into).into();
        if self.long {
            flags.push("--long".into());
        }
        if self.everything {
            flags.push("--everything".into());
        }
        if let Some(phase) = self.phase {
            flags.extend(["--phase", phase.name()].map(Into::into));
        }
        if self.older_kubernetes {
            flags.push("--older-kubernetes".into());
        }
        if let Some(directory) = &self.shared_pool {
            flags.extend(["--shared-pool".into(), directory.into()]);
        }
        if let Some(told) = Pace::told_at() {
            flags.extend(["--pace".into(), told.into()]);
        }
        if let Some(directory) = &self.control_plane {
            flags.extend(["--control-plane".into(), directory.into()]);
        }
        flags
    }

    /// The options of a test that runs in this slot.
    pub fn in_slot(&self, slot: usize) -> Self {
        Self { shared_pool: self.shared_pools.get(slot).cloned(), ..self.clone() }
    }

    /// Returns whether the kernel here enforces the sizes of volumes.
    pub fn enforces_sizes(&self) -> bool {
        self.place == Place::Vm
    }
}

/// The path of one of the programs under test: in `$BULKHEAD_BIN_DIR`, or beside the running program.
pub fn program(name: &str) -> Result<PathBuf> {
    program_in(None, name)
}

/// The path of one of the programs under test: in `directory`, if that is given.
pub fn program_in(directory: Option<&Path>, name: &str) -> Result<PathBuf> {
    let directory = match (directory, std::env::var_os("BULKHEAD_BIN_DIR")) {
        (Some(directory), _) => directory.to_owned(),
        (None, Some(directory)) => PathBuf::from(directory),
        (None, None) => {
            let own = std::env::current_exe().context("find the running program")?;
            own.parent().context("the running program has no directory")?.to_owned()
        }
    };
    let path = directory.join(name);
    path.metadata().with_context(|| format!("program under test {} is missing: build it first", path.display()))?;
    Ok(path)
}
