//! Which claims concern an agent: those of its driver that have its node selected, or no node yet, and those that are bound
//! to a volume of its node, to which it gives its label.

use bulkhead_model::objects::claim;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;

use crate::kubernetes::labels::scope::Scope;

/// A claim whose contents are not known.
pub fn without_contents(partial: PartialObjectMeta<PersistentVolumeClaim>) -> PersistentVolumeClaim {
    PersistentVolumeClaim { metadata: partial.metadata, ..PersistentVolumeClaim::default() }
}

/// Returns whether `claim` concerns the agent of `scope`.
pub fn includes(scope: &Scope, claim: &PersistentVolumeClaim) -> bool {
    let is_for_node = claim::selected_node(claim).is_none_or(|node| node == scope.node);
    is_of_driver(scope, claim) && is_for_node || is_bound_here(scope, claim)
}

fn is_bound_here(scope: &Scope, claim: &PersistentVolumeClaim) -> bool {
    let label = claim.labels().get(scope.place.key());
    claim::is_bound(claim) && label.is_some_and(|label| label == scope.place.value())
}

/// Returns what remains of an event about all claims once those that do not concern the agent are left out.
pub fn filter(
    scope: &Scope,
    event: Event<PartialObjectMeta<PersistentVolumeClaim>>,
) -> Option<Event<PersistentVolumeClaim>> {
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(partial) => {
            Some(without_contents(partial)).filter(|claim| includes(scope, claim)).map(Event::InitApply)
        }
        Event::Apply(partial) => {
            let claim = without_contents(partial);
            if includes(scope, &claim) {
                Some(Event::Apply(claim))
            } else {
                // It may have concerned the agent until now.
                is_of_driver(scope, &claim).then_some(Event::Delete(claim))
            }
        }
        Event::Delete(partial) => Some(Event::Delete(without_contents(partial))),
    }
}

fn is_of_driver(scope: &Scope, claim: &PersistentVolumeClaim) -> bool {
    claim::provisioner(claim) == Some(&scope.driver)
}

#[cfg(test)]
mod tests {
    use bulkhead_model::volumes::Place;
    use serde_json::json;

    use super::*;
    use crate::kubernetes::intervals::Intervals;

    fn scope() -> Scope {
        let driver = "bulkhead.csi.local";
        let place = Place::new(&driver.parse().unwrap(), "here");
        Scope { driver: driver.to_owned(), node: "here".to_owned(), place, intervals: Intervals::default() }
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
        let is_included = |provisioner, node| includes(&scope(), &without_contents(partial(provisioner, node)));
        assert!(is_included("bulkhead.csi.local", Some("here")));
        assert!(is_included("bulkhead.csi.local", None));
        assert!(!is_included("bulkhead.csi.local", Some("there")));
        assert!(!is_included("other.example.com", Some("here")));
    }

    #[test]
    fn a_claim_that_others_have_bound_to_a_volume_of_this_node_has_its_label() {
        let is_included = |node: &str, bound: serde_json::Value| {
            let labels = json!({ "bulkhead.csi.local/node": node });
            let partial = json!({ "metadata": { "name": "data", "labels": labels, "annotations": bound } });
            includes(&scope(), &without_contents(serde_json::from_value(partial).unwrap()))
        };
        let bound = || json!({ "pv.kubernetes.io/bind-completed": "yes" });
        assert!(is_included("here", bound()));
        assert!(!is_included("there", bound()));
        assert!(!is_included("here", json!({})), "nobody has bound it");
    }

    #[test]
    fn a_claim_that_goes_to_another_node_is_gone() {
        let filtered = |provisioner, node| filter(&scope(), Event::Apply(partial(provisioner, node)));
        assert!(matches!(filtered("bulkhead.csi.local", Some("here")), Some(Event::Apply(_))));
        assert!(matches!(filtered("bulkhead.csi.local", Some("there")), Some(Event::Delete(_))));
        assert!(filtered("other.example.com", Some("here")).is_none());
        assert!(filter(&scope(), Event::InitApply(partial("bulkhead.csi.local", Some("there")))).is_none());
    }
}
