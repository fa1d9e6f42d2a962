//! Whether two builds gave the same result.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::origin::copy;
use super::{CHECKSUMS, Contents, VERSION, write_from};
use crate::process::command;
use crate::workspace::Workspace;

/// Makes the release again, from a copy of the source in another directory and with nothing built before, and returns
/// what differs, one line per file. The second release is kept so that the differences can be examined.
pub fn check(workspace: &Workspace, contents: &Contents<'_>, first: &Path) -> Result<Vec<String>> {
    let copy = copy(workspace)?;
    let second = workspace.target.join(format!("bulkhead-{VERSION}-again"));
    write_from(copy.path(), &workspace.copied_to(copy.path()), contents, &second)?;
    differences(first, &second)
}

/// Returns what differs between the files of two releases, one line each.
fn differences(first: &Path, second: &Path) -> Result<Vec<String>> {
    let mut diff = command("diff");
    // If a file differs, so do the checksums.
    diff.args(["--brief", "--recursive", "--exclude", CHECKSUMS]).args([first, second]);
    let found = diff.env("LC_ALL", "C").output().context("start diff")?;
    ensure!(matches!(found.status.code(), Some(0 | 1)), "diff: {}", String::from_utf8_lossy(&found.stderr));
    Ok(String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use fs_err as fs;

    use super::*;

    #[test]
    fn a_file_that_differs_is_named() {
        let [first, second] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        for (place, own) in [(first.path(), "first"), (second.path(), "second")] {
            for (file, content) in [("same", ""), ("other", own), (CHECKSUMS, own), (own, "")] {
                fs::write(place.join(file), content).unwrap();
            }
        }
        assert_eq!(differences(first.path(), first.path()).unwrap(), Vec::<String>::new());
        let found = differences(first.path(), second.path()).unwrap();
        let named = ["first", "other", "second"].map(|file| found.iter().filter(|line| line.contains(file)).count());
        assert!(found.len() == 3 && named == [1; 3], "{found:?}");
    }
}
