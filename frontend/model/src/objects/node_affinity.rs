//! Where a PersistentVolume may be used, according to its node affinity.

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, VolumeNodeAffinity,
};

use crate::volumes::Place;

/// The affinity of a volume that can be used at `place` only.
pub fn require(place: &Place) -> VolumeNodeAffinity {
    let here = NodeSelectorRequirement {
        key: place.key().to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![place.value().to_owned()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![here]), match_fields: None };
    VolumeNodeAffinity { required: Some(NodeSelector { node_selector_terms: vec![term] }) }
}

/// Returns whether `object` can be used at `place` and nowhere else.
pub fn is_only(object: &PersistentVolume, place: &Place) -> bool {
    let terms = required_terms(object);
    !terms.is_empty() && terms.iter().all(|term| allowed_values(term, place).any(|values| values == [place.value()]))
}

/// Returns whether `object` states that it is on another node than `place`.
pub fn is_elsewhere(object: &PersistentVolume, place: &Place) -> bool {
    let is_here = |values: &[String]| values.iter().any(|value| value == place.value());
    let terms = required_terms(object);
    !terms.is_empty() && terms.iter().all(|term| allowed_values(term, place).any(|values| !is_here(values)))
}

/// The nodes on which `object` can be used, as values of the place's key.
pub fn nodes<'a>(object: &'a PersistentVolume, place: &'a Place) -> impl Iterator<Item = &'a str> {
    let values = required_terms(object).iter().flat_map(|term| allowed_values(term, place));
    values.flatten().map(String::as_str)
}

fn required_terms(object: &PersistentVolume) -> &[NodeSelectorTerm] {
    let required = object.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    required.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default()
}

/// The values that `term` allows for the place's key, for each expression on that key.
fn allowed_values<'a>(term: &'a NodeSelectorTerm, place: &'a Place) -> impl Iterator<Item = &'a [String]> {
    let expressions = term.match_expressions.iter().flatten();
    let about_place = expressions.filter(|expression| expression.key == place.key() && expression.operator == "In");
    about_place.map(|expression| expression.values.as_deref().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn place() -> Place {
        Place::new(&"bulkhead.csi.local".parse().unwrap(), "here")
    }

    fn object(terms: Value) -> PersistentVolume {
        let affinity = json!({ "required": { "nodeSelectorTerms": terms } });
        serde_json::from_value(json!({ "spec": { "nodeAffinity": affinity } })).unwrap()
    }

    fn term(key: &str, values: &[&str]) -> Value {
        json!({ "matchExpressions": [{ "key": key, "operator": "In", "values": values }] })
    }

    const KEY: &str = "bulkhead.csi.local/node";

    #[test]
    fn only_here() {
        let only = |terms: Value| is_only(&object(terms), &place());
        assert!(only(json!([term(KEY, &["here"])])));
        assert!(!only(json!([term(KEY, &["here", "there"])])));
        assert!(!only(json!([term(KEY, &["here"]), term(KEY, &["there"])])));
        assert!(!only(json!([])));
        assert!(!is_only(&PersistentVolume::default(), &place()));
        let required = PersistentVolume {
            spec: Some(k8s_openapi::api::core::v1::PersistentVolumeSpec {
                node_affinity: Some(require(&place())),
                ..Default::default()
            }),
            ..PersistentVolume::default()
        };
        assert!(is_only(&required, &place()));
    }

    #[test]
    fn elsewhere_is_where_another_node_is_named() {
        let elsewhere = |terms: Value| is_elsewhere(&object(terms), &place());
        let (here, there) = (term(KEY, &["here"]), term(KEY, &["there"]));
        assert!(elsewhere(json!([there])));
        assert!(!elsewhere(json!([here])));
        assert!(!elsewhere(json!([there, here])));
        assert!(!elsewhere(json!([])));
        assert!(!elsewhere(json!([term("kubernetes.io/hostname", &["there"])])), "a key that says nothing to us");
    }
}
