//! Directories that last as long as one run.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process;

use anyhow::Result;
use fs_err as fs;
use tempfile::TempDir;

/// It tells them from whatever else is where they are made.
const PREFIX: &str = "bulkhead-run-";

/// Makes another directory for this process, next to those of other runs. It is removed when the value is dropped; the
/// next run removes the directories of killed processes.
pub fn run_directory(runs: &Path) -> Result<TempDir> {
    fs::create_dir_all(runs)?;
    for entry in fs::read_dir(runs)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if process.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let directory = tempfile::Builder::new().prefix(&format!("{PREFIX}{}-", process::id())).tempdir_in(runs)?;
    // Others than its owner run the programs in it.
    make_executable(directory.path())?;
    Ok(directory)
}

/// Lets everybody run a program, or enter a directory.
pub fn make_executable(path: &Path) -> Result<()> {
    Ok(fs::set_permissions(path, Permissions::from_mode(0o755))?)
}
