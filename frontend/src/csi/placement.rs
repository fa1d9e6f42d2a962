//! Decides whether a volume may be created on this node.

use bulkhead_model::volumes::{Fault, FaultKind, Place};

use crate::proto::csi::TopologyRequirement;

/// Checks that `here` is among the requested places. A preference for other places does not exclude this one, since a
/// volume cannot be created anywhere else.
///
/// # Errors
/// When the volume must be elsewhere.
pub(super) fn check(requirement: Option<&TopologyRequirement>, here: &Place) -> Result<(), Fault> {
    let Some(requirement) = requirement else { return Ok(()) };
    let requisite = &requirement.requisite;
    if requisite.is_empty() || requisite.iter().any(|place| here.satisfies(&place.segments)) {
        return Ok(());
    }
    let message =
        format!("volumes created on this node are accessible only at {here}, which accessibility_requirements exclude");
    Err(Fault::new(FaultKind::Elsewhere, message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::proto::csi::Topology;

    fn topology(node: &str) -> Topology {
        Topology { segments: BTreeMap::from([("bulkhead.csi.local/node".to_owned(), node.to_owned())]) }
    }

    fn checked(requisite: &[&str], preferred: &[&str]) -> bool {
        let here = Place::new(&"bulkhead.csi.local".parse().unwrap(), "here");
        let places = |nodes: &[&str]| nodes.iter().map(|node| topology(node)).collect();
        let requirement = TopologyRequirement { requisite: places(requisite), preferred: places(preferred) };
        check(Some(&requirement), &here).is_ok()
    }

    #[test]
    fn one_requisite_place_must_be_here() {
        assert!(checked(&["here"], &[]));
        assert!(checked(&["there", "here"], &["there"]));
        assert!(!checked(&["there"], &[]));
        assert!(!checked(&["there", "elsewhere"], &["there"]));
    }

    #[test]
    fn preferences_alone_exclude_nothing() {
        assert!(checked(&[], &["there"]));
        assert!(checked(&[], &[]));
    }
}
