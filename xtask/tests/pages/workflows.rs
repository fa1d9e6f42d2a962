//! What the workflows run is fixed: a tag of an action can be moved to another commit, a hash cannot.

use super::{files, read};

#[test]
fn every_action_is_pinned_by_the_hash_of_a_commit() {
    let mut seen = 0;
    for path in files(".github/workflows", ".yml") {
        for action in read(&path).lines().filter_map(|line| line.split_once("uses: ")).map(|(_, action)| action) {
            assert!(is_pinned(action), "{}: {action} has no hash, or does not say which version it is", path.display());
            seen += 1;
        }
    }
    assert!(seen > 5, "only {seen} actions were found");
}

#[test]
fn a_tag_or_part_of_a_hash_pins_nothing() {
    let hash = "0123456789abcdef".repeat(3);
    assert!(is_pinned(&format!("a/b@{} # v1.2.3", &hash[..40])));
    for action in ["a/b@v1", "a/b", &format!("a/b@{}", &hash[..40]), &format!("a/b@{} # v1", &hash[..39])] {
        assert!(!is_pinned(action), "{action}");
    }
}

/// Returns whether an action is named by a commit, with its version in a comment for readers and tools that update it.
fn is_pinned(action: &str) -> bool {
    let Some((_, pin)) = action.split_once('@') else { return false };
    let Some((hash, version)) = pin.split_once(" # v") else { return false };
    hash.len() == 40 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) && !version.is_empty()
}
