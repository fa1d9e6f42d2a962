//! What a release is made from: the commit, its date, and a copy of the files.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::cache;
use crate::directory::run_directory;
use crate::process::{capture, command};
use crate::workspace::Workspace;

/// The commit that a release is made from.
pub struct Origin {
    /// Its hash; `-modified` is appended if the files differ from it.
    pub revision: String,
    /// Its date in seconds since the epoch: the modification time of all files in the release.
    pub seconds: u64,
    /// The same date in the format of RFC 3339.
    pub date: String,
}

impl Origin {
    /// Asks git, or takes the date from `SOURCE_DATE_EPOCH`.
    pub fn of(workspace: &Workspace) -> Result<Self> {
        let git = |arguments: &[&str]| capture(git(workspace).args(arguments));
        let mut revision = git(&["rev-parse", "HEAD"])?.trim().to_owned();
        if !git(&["status", "--porcelain"])?.is_empty() {
            revision += "-modified";
        }
        let seconds = match env::var("SOURCE_DATE_EPOCH") {
            Ok(seconds) => seconds,
            Err(_) => git(&["log", "-1", "--format=%ct"])?,
        };
        let seconds = seconds.trim().parse().context("the date is no number of seconds: see SOURCE_DATE_EPOCH")?;
        let date = capture(command("date").args(["--utc", &format!("--date=@{seconds}"), "+%Y-%m-%dT%H:%M:%SZ"]))?;
        Ok(Origin { revision, seconds, date: date.trim().to_owned() })
    }

    /// Returns whether the files are those of the commit.
    pub fn is_committed(&self) -> bool {
        !self.revision.ends_with("-modified")
    }
}

/// A copy of the workspace's files, outside the workspace; it is removed when this value is dropped.
pub struct Copy {
    directory: TempDir,
}

impl Copy {
    /// Copies the files that git tracks, and new ones that it does not ignore.
    pub fn of(workspace: &Workspace) -> Result<Self> {
        let directory = run_directory(&cache::directory("release")?)?;
        let copy = Copy { directory };
        let files = capture(git(workspace).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]))?;
        for file in files.split_terminator('\0') {
            let (from, to) = (workspace.root.join(file), copy.root().join(file));
            // The file was removed after the last commit.
            if !from.exists() {
                continue;
            }
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
            }
            fs::copy(&from, &to).with_context(|| format!("copy {}", from.display()))?;
        }
        Ok(copy)
    }

    /// Its top directory.
    pub fn root(&self) -> PathBuf {
        self.directory.path().join("source")
    }
}

fn git(workspace: &Workspace) -> Command {
    let mut git = command("git");
    git.current_dir::<&Path>(&workspace.root);
    git
}
