//! What a release is made from: the commit, its date, and a copy of the files.

use std::env;

use anyhow::{Context, Result};
use fs_err as fs;
use jiff::Timestamp;
use tempfile::TempDir;

use crate::cache;
use crate::directory::run_directory;
use crate::process::capture;
use crate::workspace::Workspace;

/// The commit that a release is made from.
pub struct Origin {
    /// Its hash; `-modified` is appended if the files differ from it.
    pub revision: String,
    /// Its date: the modification time of all files in the release.
    pub date: Timestamp,
}

impl Origin {
    /// Asks git, or takes the date from `SOURCE_DATE_EPOCH`.
    pub fn of(workspace: &Workspace) -> Result<Self> {
        let git = |arguments: &[&str]| capture(&mut workspace.git(arguments));
        let mut revision = git(&["rev-parse", "HEAD"])?.trim().to_owned();
        if !git(&["status", "--porcelain"])?.is_empty() {
            revision += "-modified";
        }
        let seconds = match env::var("SOURCE_DATE_EPOCH") {
            Ok(seconds) => seconds,
            Err(_) => git(&["log", "-1", "--format=%ct"])?,
        };
        let seconds = seconds.trim().parse().context("the date is no number of seconds: see SOURCE_DATE_EPOCH")?;
        Ok(Origin { revision, date: Timestamp::from_second(seconds)? })
    }

    /// Returns whether the files are those of the commit.
    pub fn is_committed(&self) -> bool {
        !self.revision.ends_with("-modified")
    }
}

/// A copy of the workspace's files, outside the workspace: those that git tracks, and new ones that it does not ignore. It is
/// removed when the value is dropped.
pub fn copy(workspace: &Workspace) -> Result<TempDir> {
    let copy = run_directory(&cache::directory("release")?)?;
    let files = capture(&mut workspace.git(&["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
    for file in files.split_terminator('\0') {
        let (from, to) = (workspace.root.join(file), copy.path().join(file));
        // Else the file was removed after the last commit.
        if from.exists() {
            fs::create_dir_all(to.parent().context("a file in no directory")?)?;
            fs::copy(&from, &to)?;
        }
    }
    Ok(copy)
}
