//! Which VolumeSnapshotContents concern an agent: those of its driver that its node handles, or no node yet.

use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::volumes::Place;
use kube::runtime::watcher::Event;

/// The driver and the node.
#[derive(Clone)]
pub struct Scope {
    /// The driver's name.
    pub driver: String,
    /// The node's name.
    pub node: String,
    /// The node as a label.
    pub place: Place,
}

impl Scope {
    /// Whether `content` concerns the agent.
    pub fn includes(&self, content: &VolumeSnapshotContent) -> bool {
        self.is_of_driver(content) && content.node(&self.place).is_none_or(|node| node == self.place.value())
    }

    /// What remains of an event about all objects once those that do not concern the agent are left out.
    pub fn filter(&self, event: Event<VolumeSnapshotContent>) -> Option<Event<VolumeSnapshotContent>> {
        match event {
            Event::InitApply(content) if !self.includes(&content) => None,
            // It may have concerned the agent until now.
            Event::Apply(content) if !self.includes(&content) => {
                self.is_of_driver(&content).then_some(Event::Delete(content))
            }
            event => Some(event),
        }
    }

    fn is_of_driver(&self, content: &VolumeSnapshotContent) -> bool {
        content.spec.driver == self.driver
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kubernetes::snapshots::fixtures::{content, place};

    fn scope() -> Scope {
        Scope { driver: "bulkhead.csi.local".to_owned(), node: "here".to_owned(), place: place() }
    }

    fn on(node: &str) -> VolumeSnapshotContent {
        content(json!({ "metadata": { "labels": { "bulkhead.csi.local/node": node } } }))
    }

    #[test]
    fn only_those_of_the_driver_that_this_node_may_have() {
        assert!(scope().includes(&on("here")) && scope().includes(&on("")));
        assert!(scope().includes(&content(json!({ "metadata": { "labels": null } }))));
        assert!(!scope().includes(&on("there")));
        assert!(!scope().includes(&content(json!({ "spec": { "driver": "other.example.com" } }))));
    }

    #[test]
    fn one_that_goes_to_another_node_is_gone() {
        assert!(matches!(scope().filter(Event::Apply(on("here"))), Some(Event::Apply(_))));
        assert!(matches!(scope().filter(Event::Apply(on("there"))), Some(Event::Delete(_))));
        let foreign = || content(json!({ "spec": { "driver": "other.example.com" } }));
        assert!(scope().filter(Event::Apply(foreign())).is_none());
        assert!(scope().filter(Event::InitApply(foreign())).is_none());
    }
}
