//! The conditions of pools in the log: each when it appears and when it is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_protocol::{PoolName, Text};

use crate::quantity::for_people;

/// The conditions that each pool reported last.
#[derive(Clone, Default)]
pub struct Conditions(Arc<Mutex<BTreeMap<PoolName, BTreeSet<String>>>>);

impl Conditions {
    /// Logs what has changed since the pool's last report.
    pub fn note(&self, pool: &PoolName, reported: &[Text]) {
        let now: BTreeSet<String> = reported.iter().map(|condition| without_figures(condition.as_str())).collect();
        let mut pools = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = pools.insert(pool.clone(), now.clone()).unwrap_or_default();
        for condition in reported.iter().filter(|condition| !before.contains(&without_figures(condition.as_str()))) {
            tracing::warn!(%pool, "the pool reports: {}", for_people(condition.as_str()));
        }
        for condition in before.difference(&now) {
            tracing::info!(%pool, "the pool no longer reports: {condition}");
        }
    }
}

/// A condition is the same one while its figures change.
fn without_figures(condition: &str) -> String {
    let mut text = String::with_capacity(condition.len());
    for character in condition.chars() {
        match character.is_ascii_digit() {
            true if text.ends_with('N') => {}
            true => text.push('N'),
            false => text.push(character),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_do_not_make_another_condition() {
        assert_eq!(
            without_figures("4096 bytes and 7 files (the first is 4711)"),
            "N bytes and N files (the first is N)"
        );
        assert_eq!(without_figures("mounted noexec"), "mounted noexec");
    }
}
