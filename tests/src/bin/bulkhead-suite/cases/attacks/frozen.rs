//! A frozen filesystem: any change to it blocks forever.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use bulkhead_tests::pool::run;

/// A frozen filesystem. A separate process thaws it at the end of its input, which comes when this value is dropped,
/// and also when this process is killed.
pub struct Frozen(Child);

impl Frozen {
    /// Freezes the filesystem mounted at this directory.
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
        // This closes the input first.
        let _ = self.0.wait();
    }
}
