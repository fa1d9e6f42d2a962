//! Ids of volumes, in tests that run side by side.
//!
//! Most tests give their volumes the same ids. To a helper that starts, the device of another test's volume is one that
//! has lost its pool: what the helper does not know under that id may still be attached, and the answer to a request for
//! it says so. A test that makes such a request needs ids of its own. Without them it would fail whenever another one
//! happened to have the device; because of the decoys it fails always.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::observe::loops;

/// An id that begins like this one, and is no other test's: each test is a process, and a short one.
pub fn own(id: &str) -> &'static str {
    format!("{id}-{}", std::process::id()).leak()
}

/// Devices with the labels of the usual ids, for as long as a run takes.
#[derive(Debug)]
pub struct Decoys(Vec<PathBuf>);

impl Decoys {
    /// Attaches a file in `directory` to a device for each id that is `vol-` and a letter or a digit.
    pub fn make(directory: &Path) -> Result<Self> {
        let file = directory.join("decoy");
        File::create_new(&file)?.set_len(4096).context("make the file of the decoys")?;
        let mut decoys = Self(Vec::new());
        for last in ('a'..='z').chain('0'..='9') {
            decoys.0.push(loops::attach_as_helpers_do(&file, &format!("vol-{last}"))?);
        }
        Ok(decoys)
    }
}

impl Drop for Decoys {
    fn drop(&mut self) {
        // What is still bound then has nothing on it, and hinders no later run.
        let _ = loops::remove(&self.0);
    }
}
