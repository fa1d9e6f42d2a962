//! A filesystem that is frozen: what changes it waits for ever.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use bulkhead_tests::pool::run;

/// A frozen filesystem. It is thawed by a process of its own, which waits for the end of its input: that comes when this
/// value is dropped, and also when this process is killed.
pub struct Frozen(Child);

impl Frozen {
    /// Freezes the filesystem of a directory that is the root of its mount.
    pub fn freeze(directory: &Path) -> Result<Self> {
        let mut guard = Command::new("sh");
        guard
            .args(["-c", "cat; exec fsfreeze --unfreeze \"$0\""])
            .arg(directory)
            .stdin(Stdio::piped())
            .process_group(0);
        let frozen = Self(guard.spawn().context("start the process that thaws")?);
        run(Command::new("fsfreeze").arg("--freeze").arg(directory))?;
        Ok(frozen)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // It closes the input first.
        let _ = self.0.wait();
    }
}
