//! The lists with which a term's watches start. Nothing is served before they are complete, and an API server that is slow
//! but answers is no failure that would be retried, so a watchdog tells.
//!
//! The library's own signal, `Store::wait_until_ready`, wakes only the last of the tasks that wait for it.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::readiness::{Part, Readiness};

/// How long they may take before somebody is told. A large cluster's take seconds.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// What nothing waits for but snapshots: a cluster may know the kind, and have a list of it that fails for good.
const SNAPSHOTS: [&str; 2] = ["volumesnapshotcontents", "volumegroupsnapshotcontents"];

/// Those that are not complete, by the names that the API has for the objects. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct FirstLists(watch::Sender<BTreeSet<String>>);

impl FirstLists {
    /// Expects the list of `resource`.
    pub fn expect(&self, resource: &str) {
        self.0.send_if_modified(|missing| missing.insert(resource.to_owned()));
    }

    /// Records that the list of `resource` is complete.
    pub fn complete(&self, resource: &str) {
        self.0.send_if_modified(|missing| missing.remove(resource));
    }

    /// Returns whether the list of `resource` is complete.
    pub fn is_complete(&self, resource: &str) -> bool {
        !self.0.borrow().contains(resource)
    }

    /// Waits until those of all `resources` are complete.
    pub async fn are_complete(&self, resources: &[&str]) {
        let is_missing = |missing: &BTreeSet<String>| resources.iter().any(|resource| missing.contains(*resource));
        // It cannot fail: the sender is held here.
        let _ = self.0.subscribe().wait_for(|missing| !is_missing(missing)).await;
    }

    /// Has the agent count as not ready while any of them, but that of snapshots, takes longer than `patience`.
    pub async fn guard(&self, patience: Duration, readiness: &Readiness) -> Infallible {
        let mut changes = self.0.subscribe();
        let mut is_late = timeout(patience, changes.wait_for(BTreeSet::is_empty)).await.is_err();
        while is_late {
            let missing = changes.borrow_and_update().clone();
            if missing.is_empty() {
                info!("all first lists are complete");
                readiness.ready(Part::Agent);
                break;
            }
            let seconds = patience.as_secs();
            let why = format!(
                "the API server has not completed the first list of {} within {seconds} seconds, and what depends on it waits: see what the log says of it, whether the server is overloaded, and what this node's network does",
                missing.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
            );
            warn!("{why}");
            if missing.iter().all(|missing| SNAPSHOTS.contains(&missing.as_str())) {
                readiness.ready(Part::Agent)
            } else {
                readiness.not_ready(Part::Agent, why)
            }
            is_late = changes.changed().await.is_ok();
        }
        pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(50);

    /// What the agent's state is after a while.
    async fn later(guard: impl Future<Output = Infallible> + Unpin, readiness: &Readiness) -> Result<(), String> {
        assert!(timeout(4 * SHORT, guard).await.is_err());
        readiness.state(Part::Agent).unwrap()
    }

    #[tokio::test]
    async fn a_list_that_takes_long_is_named_until_it_is_complete() {
        let (lists, readiness) = (FirstLists::default(), Readiness::default());
        readiness.ready(Part::Agent);
        lists.expect("claims");
        lists.expect("volumes");
        let mut guard = Box::pin(lists.guard(SHORT, &readiness));
        let why = later(&mut guard, &readiness).await.unwrap_err();
        assert!(why.contains("the first list of claims, volumes within"), "{why}");
        lists.complete("claims");
        let why = later(&mut guard, &readiness).await.unwrap_err();
        assert!(why.contains("the first list of volumes within"), "{why}");
        lists.complete("volumes");
        assert_eq!(later(&mut guard, &readiness).await, Ok(()));
    }

    #[tokio::test]
    async fn a_list_of_snapshots_that_takes_long_is_no_failure_of_the_agent() {
        let (lists, readiness) = (FirstLists::default(), Readiness::default());
        lists.expect("claims");
        SNAPSHOTS.iter().for_each(|snapshots| lists.expect(snapshots));
        let mut guard = Box::pin(lists.guard(SHORT, &readiness));
        let why = later(&mut guard, &readiness).await.unwrap_err();
        assert!(why.contains("claims, volumegroupsnapshotcontents, volumesnapshotcontents"), "{why}");
        lists.complete("claims");
        assert_eq!(later(&mut guard, &readiness).await, Ok(()));
    }

    #[tokio::test]
    async fn lists_in_time_change_nothing() {
        let (lists, readiness) = (FirstLists::default(), Readiness::default());
        readiness.not_ready(Part::Agent, "something else");
        lists.expect("claims");
        lists.complete("claims");
        let state = later(Box::pin(lists.guard(SHORT, &readiness)), &readiness).await;
        assert_eq!(state, Err("something else".to_owned()));
    }

    #[tokio::test]
    async fn all_who_wait_are_woken() {
        let lists = FirstLists::default();
        lists.expect("claims");
        lists.expect("volumes");
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let lists = lists.clone();
                tokio::spawn(async move { lists.are_complete(&["claims"]).await })
            })
            .collect();
        tokio::task::yield_now().await;
        lists.complete("claims");
        for waiting in waiting {
            timeout(Duration::from_secs(5), waiting).await.unwrap().unwrap();
        }
    }
}
