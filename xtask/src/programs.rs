//! The programs under test, copied once they are built: another build in the same checkout must not change them while
//! they run, or between two steps.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::directory::RunDirectory;
use crate::workspace::{Architecture, Profile, Selection, Workspace};

/// A directory of programs, removed when this value is dropped.
pub struct Programs {
    directory: RunDirectory,
}

impl Programs {
    /// Builds programs for this host and copies them.
    pub fn build(workspace: &Workspace, selection: Selection, profile: Profile) -> Result<Self> {
        Self::copy(workspace, &workspace.build(selection, Architecture::host(), profile)?)
    }

    /// Copies the programs that an earlier build left.
    pub fn built(workspace: &Workspace, selection: Selection, profile: Profile) -> Result<Self> {
        Self::copy(workspace, &workspace.built(selection, Architecture::host(), profile)?)
    }

    /// Copies these programs.
    pub fn copy(workspace: &Workspace, built: &[PathBuf]) -> Result<Self> {
        let directory = RunDirectory::new(&workspace.runs())?;
        for program in built {
            let name = program.file_name().with_context(|| format!("{} has no name", program.display()))?;
            let copy = directory.path().join(name);
            fs::copy(program, copy).with_context(|| format!("copy {}", program.display()))?;
        }
        Ok(Programs { directory })
    }

    /// The path of a program.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The paths of all programs.
    pub fn all(&self) -> Result<Vec<PathBuf>> {
        fs::read_dir(self.directory.path())?.map(|entry| Ok(entry?.path())).collect()
    }
}
