//! The programs under test, copied once they are built: another build in the same checkout must not change them while
//! they run, or between two steps.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err as fs;
use tempfile::TempDir;

use crate::directory::run_directory;
use crate::workspace::{Architecture, Profile, Selection, Workspace};

/// A directory of programs, removed when this value is dropped.
pub struct Programs {
    directory: TempDir,
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
        let directory = run_directory(&place(&workspace.runs()))?;
        copy_into(built, directory.path())?;
        Ok(Programs { directory })
    }

    /// The directory that they are in.
    pub fn directory(&self) -> &Path {
        self.directory.path()
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

/// Copies programs into a directory, which is made unless it exists.
pub fn copy_into(programs: &[PathBuf], directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    for program in programs {
        let name = program.file_name().with_context(|| format!("{} has no name", program.display()))?;
        fs::copy(program, directory.join(name))?;
    }
    Ok(())
}

/// Returns where programs are copied to: next to the other files of a run or, if other users cannot get there, to the
/// directory for temporary files. Frontends run as another user, and a checkout may be below a directory that is its
/// owner's alone.
fn place(runs: &Path) -> PathBuf {
    if fs::create_dir_all(runs).is_ok() && is_open_to_all(runs) { runs.to_owned() } else { std::env::temp_dir() }
}

/// Returns whether all users may enter a directory and all those above it.
fn is_open_to_all(directory: &Path) -> bool {
    let Ok(directory) = directory.canonicalize() else { return false };
    let enters = |above: &Path| fs::metadata(above).is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
    directory.ancestors().all(enters)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn programs_of_a_checkout_that_others_cannot_enter_are_run_by_others() {
        let outer = run_directory(&std::env::temp_dir()).expect("a directory");
        let runs = outer.path().join("checkout/target/vm");
        assert_eq!(place(&runs), runs, "it is where it is looked for as long as that can be entered");
        fs::set_permissions(outer.path(), Permissions::from_mode(0o700)).expect("it is ours");
        assert_ne!(place(&runs), runs);
        let programs = Programs { directory: run_directory(&place(&runs)).expect("a directory") };
        assert!(is_open_to_all(programs.directory.path()), "{}", programs.directory.path().display());
        fs::copy("/bin/true", programs.path("true")).expect("a program");
        // Who is not root cannot run it as another user, but cannot run the tests that do either.
        if rustix::process::geteuid().is_root() {
            let status = Command::new(programs.path("true")).uid(901).gid(901).status();
            assert!(status.expect("it can be reached").success());
        }
    }
}
