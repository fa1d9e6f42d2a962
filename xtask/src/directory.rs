//! Directories that last as long as one run, and locks for the cache that all runs share.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

/// It tells them from whatever else is where they are made.
const PREFIX: &str = "bulkhead-run-";

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A directory that is removed when this value is dropped. The next run removes the directories of killed processes.
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// Makes another directory for this process, next to those of other runs.
    pub fn new(runs: &Path) -> Result<Self> {
        fs::create_dir_all(runs)?;
        for entry in fs::read_dir(runs)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
            if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = runs.join(format!("{PREFIX}{}-{number}", process::id()));
        // It fails if somebody has put something there.
        fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(RunDirectory { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Locks one part of the cache for this process until the file is dropped.
pub fn lock(cache: &Path, part: &str) -> Result<File> {
    fs::create_dir_all(cache)?;
    let file = File::create(cache.join(format!("{part}.lock")))?;
    flock(&file, FlockOperation::LockExclusive).context("wait for another xtask to prepare the same")?;
    Ok(file)
}
