//! Which claims concern an agent: those of its driver that have its node selected, or no node yet.

use bulkhead_model::objects::claim;
use bulkhead_model::volumes::Place;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::core::PartialObjectMeta;
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

/// A claim whose contents are not known.
pub fn without_contents(partial: PartialObjectMeta<PersistentVolumeClaim>) -> PersistentVolumeClaim {
    PersistentVolumeClaim { metadata: partial.metadata, ..PersistentVolumeClaim::default() }
}

impl Scope {
    /// Whether `claim` concerns the agent.
    pub fn includes(&self, claim: &PersistentVolumeClaim) -> bool {
        self.is_of_driver(claim) && claim::selected_node(claim).is_none_or(|node| node == self.node)
    }

    /// What remains of an event about all claims once those that do not concern the agent are left out.
    pub fn filter(
        &self,
        event: Event<PartialObjectMeta<PersistentVolumeClaim>>,
    ) -> Option<Event<PersistentVolumeClaim>> {
        match event {
            Event::Init => Some(Event::Init),
            Event::InitDone => Some(Event::InitDone),
            Event::InitApply(partial) => {
                Some(without_contents(partial)).filter(|claim| self.includes(claim)).map(Event::InitApply)
            }
            Event::Apply(partial) => {
                let claim = without_contents(partial);
                if self.includes(&claim) {
                    Some(Event::Apply(claim))
                } else {
                    // It may have concerned the agent until now.
                    self.is_of_driver(&claim).then_some(Event::Delete(claim))
                }
            }
            Event::Delete(partial) => Some(Event::Delete(without_contents(partial))),
        }
    }

    fn is_of_driver(&self, claim: &PersistentVolumeClaim) -> bool {
        claim::provisioner(claim) == Some(&self.driver)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn scope() -> Scope {
        let driver = "bulkhead.csi.local";
        let place = Place::new(&driver.parse().unwrap(), "here");
        Scope { driver: driver.to_owned(), node: "here".to_owned(), place }
    }

    fn partial(provisioner: &str, node: Option<&str>) -> PartialObjectMeta<PersistentVolumeClaim> {
        let annotations = json!({
            "volume.kubernetes.io/storage-provisioner": provisioner, "volume.kubernetes.io/selected-node": node,
        });
        let annotations: serde_json::Map<_, _> =
            annotations.as_object().unwrap().clone().into_iter().filter(|(_, value)| !value.is_null()).collect();
        serde_json::from_value(json!({ "metadata": { "name": "data", "annotations": annotations } })).unwrap()
    }

    #[test]
    fn only_claims_of_the_driver_that_this_node_may_have() {
        let includes = |provisioner, node| scope().includes(&without_contents(partial(provisioner, node)));
        assert!(includes("bulkhead.csi.local", Some("here")));
        assert!(includes("bulkhead.csi.local", None));
        assert!(!includes("bulkhead.csi.local", Some("there")));
        assert!(!includes("other.example.com", Some("here")));
    }

    #[test]
    fn a_claim_that_goes_to_another_node_is_gone() {
        let filtered = |provisioner, node| scope().filter(Event::Apply(partial(provisioner, node)));
        assert!(matches!(filtered("bulkhead.csi.local", Some("here")), Some(Event::Apply(_))));
        assert!(matches!(filtered("bulkhead.csi.local", Some("there")), Some(Event::Delete(_))));
        assert!(filtered("other.example.com", Some("here")).is_none());
        assert!(scope().filter(Event::InitApply(partial("bulkhead.csi.local", Some("there")))).is_none());
    }
}
