//! Which objects of snapshots and groups concern an agent: those of its driver that its node handles, or no node yet.

use bulkhead_model::objects::content::Content;
use kube::runtime::watcher::Event;

use crate::kubernetes::labels::scope::Scope;

/// Returns whether `content` concerns the agent of `scope`.
pub fn includes<K: Content>(scope: &Scope, content: &K) -> bool {
    is_of_driver(scope, content) && content.node(&scope.place).is_none_or(|node| node == scope.place.value())
}

/// Returns what remains of an event about all objects once those that do not concern the agent are left out.
pub fn filter<K: Content>(scope: &Scope, event: Event<K>) -> Option<Event<K>> {
    match event {
        Event::InitApply(content) if !includes(scope, &content) => None,
        // It may have concerned the agent until now.
        Event::Apply(content) if !includes(scope, &content) => {
            is_of_driver(scope, &content).then_some(Event::Delete(content))
        }
        event => Some(event),
    }
}

fn is_of_driver<K: Content>(scope: &Scope, content: &K) -> bool {
    content.driver() == scope.driver
}

#[cfg(test)]
mod tests {
    use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
    use serde_json::json;

    use super::*;
    use crate::kubernetes::intervals::Intervals;
    use crate::kubernetes::snapshots::fixtures::{content, place};

    fn scope() -> Scope {
        let (driver, node) = ("bulkhead.csi.local".to_owned(), "here".to_owned());
        Scope { driver, node, place: place(), intervals: Intervals::default() }
    }

    fn on(node: &str) -> VolumeSnapshotContent {
        content(json!({ "metadata": { "labels": { "bulkhead.csi.local/node": node } } }))
    }

    #[test]
    fn only_those_of_the_driver_that_this_node_may_have() {
        assert!(includes(&scope(), &on("here")) && includes(&scope(), &on("")));
        assert!(includes(&scope(), &content(json!({ "metadata": { "labels": null } }))));
        assert!(!includes(&scope(), &on("there")));
        assert!(!includes(&scope(), &content(json!({ "spec": { "driver": "other.example.com" } }))));
    }

    #[test]
    fn one_that_goes_to_another_node_is_gone() {
        assert!(matches!(filter(&scope(), Event::Apply(on("here"))), Some(Event::Apply(_))));
        assert!(matches!(filter(&scope(), Event::Apply(on("there"))), Some(Event::Delete(_))));
        let foreign = || content(json!({ "spec": { "driver": "other.example.com" } }));
        assert!(filter(&scope(), Event::Apply(foreign())).is_none());
        assert!(filter(&scope(), Event::InitApply(foreign())).is_none());
    }
}
