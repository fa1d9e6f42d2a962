//! The directory of one running machine, and the lock of the cache that all machines share.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

const PREFIX: &str = "run-";

/// A directory that is removed with this value. What a killed process left is removed by the next one.
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// Makes the directory of this process, in the cache.
    pub fn new(cache: &Path) -> Result<Self> {
        fs::create_dir_all(cache)?;
        for entry in fs::read_dir(cache)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.strip_prefix(PREFIX).is_some_and(|id| !Path::new("/proc").join(id).exists()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        let path = cache.join(format!("{PREFIX}{}", process::id()));
        fs::create_dir(&path).with_context(|| format!("make {}: one machine a process", path.display()))?;
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

/// Takes the cache for this process alone until the file is dropped.
pub fn lock(cache: &Path) -> Result<File> {
    fs::create_dir_all(cache)?;
    let file = File::create(cache.join("lock"))?;
    flock(&file, FlockOperation::LockExclusive).context("wait for another xtask to prepare the machine's parts")?;
    Ok(file)
}
