//! The line that `requota` prints for a volume.

use bulkhead_privhelper::quota::{ProjectId, ProjectQuota};

use crate::tree::Found;

/// Returns what became of a volume, and whether it is limited.
pub fn describe(found: &Found, project: ProjectId, writes: bool, limit: u64, after: ProjectQuota) -> (String, bool) {
    let mut said = match (found.moved, writes) {
        (0, _) => format!("is in project {}", project.0),
        (moved, true) => format!("put into project {}: {}", project.0, counted(moved, "change")),
        (moved, false) => {
            format!("not in a project of its own: {} for project {}", counted(moved, "change"), project.0)
        }
    };
    for (number, what) in [
        (found.uncharged, "links, pipes or nodes that only Linux 6.17 and later can charge"),
        (found.shared, "files with several names that are charged to another volume (copy each to a file of its own)"),
        (found.covered, "directories that something is mounted on (unmount it and repeat)"),
        (found.failed, "entries that cannot be changed (immutable? see lsattr, chattr -i)"),
    ] {
        if number > 0 {
            said.push_str(&format!("; {what}: {number}"));
        }
    }
    if let Some(first) = &found.first {
        said.push_str(&format!(", the first is {first}"));
    }
    if limit > 0 && after.used_bytes > limit {
        said.push_str(&format!("; it uses {} bytes of {limit}: expand it, or delete files", after.used_bytes));
    }
    (said, found.is_complete() && (writes || found.moved == 0))
}

/// A number of things.
pub fn counted(number: impl TryInto<u64>, what: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_left() {
        let after = ProjectQuota { used_bytes: 9, ..ProjectQuota::default() };
        let found = Found { moved: 1, uncharged: 2, ..Found::default() };
        let (said, is_right) = describe(&found, ProjectId(7), true, 8, after);
        assert!(is_right && said.starts_with("put into project 7: 1 change; links, pipes or nodes"), "{said}");
        assert!(said.ends_with("it uses 9 bytes of 8: expand it, or delete files"), "{said}");
        assert!(!describe(&found, ProjectId(7), false, 0, after).1, "nothing was changed");
        let found = Found { failed: 1, first: Some("\"a\": EPERM".to_owned()), ..Found::default() };
        let (said, is_right) = describe(&found, ProjectId(7), true, 0, after);
        assert!(!is_right && said.contains("is in project 7; entries that cannot be changed"), "{said}");
    }
}
