//! Whether two builds gave the same result.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::origin::Copy;
use super::{Contents, VERSION, checksums, write_from};
use crate::workspace::Workspace;

/// Makes the release again, from a copy of the source in another directory and with nothing built before, and returns
/// what differs, one line per file. The second release is kept so that the differences can be examined.
pub fn check(workspace: &Workspace, contents: &Contents<'_>, first: &Path) -> Result<Vec<String>> {
    let copy = Copy::of(workspace)?;
    let second = workspace.target.join(format!("bulkhead-{VERSION}-again"));
    write_from(&copy.root(), &workspace.copied_to(&copy.root()), contents, &second)?;
    differences(first, &second)
}

/// Returns what differs between the files of two releases, one line each.
fn differences(first: &Path, second: &Path) -> Result<Vec<String>> {
    let (ours, theirs) = (checksums(first)?, checksums(second)?);
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let mut differences = Vec::new();
    for name in names {
        match (ours.get(name), theirs.get(name)) {
            (Some(one), Some(other)) if one == other => {}
            (Some(one), Some(other)) => differences.push(format!("{name} is {one} and {other}")),
            (Some(_), None) => differences.push(format!("{name} is only in {}", first.display())),
            (None, _) => differences.push(format!("{name} is only in {}", second.display())),
        }
    }
    Ok(differences)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_differs_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let (first, second) = (directory.path().join("first"), directory.path().join("second"));
        for (place, files) in [(&first, ["same", "other", "first"]), (&second, ["same", "other", "second"])] {
            fs::create_dir(place).unwrap();
            for file in files {
                let content = if file == "other" { place.to_string_lossy().into_owned() } else { String::new() };
                fs::write(place.join(file), content).unwrap();
            }
        }
        assert_eq!(differences(&first, &first).unwrap(), Vec::<String>::new());
        let found = differences(&first, &second).unwrap();
        let starts: Vec<&str> = found.iter().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(starts, ["first", "other", "second"], "{found:?}");
    }
}
