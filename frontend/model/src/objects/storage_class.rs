//! Reading a StorageClass.

use k8s_openapi::api::storage::v1::StorageClass;

use crate::volumes::{Fault, Mode, MountOptions, Parameters, Place};

/// Its parameters.
///
/// # Errors
/// When one is unknown or has an invalid value; the message names the class.
pub fn parameters(class: &StorageClass) -> Result<Parameters, Fault> {
    let pairs = class.parameters.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
    Parameters::parse(pairs).map_err(|fault| named(class, &fault))
}

/// Checks its parameters and mount options.
///
/// # Errors
/// When one is not supported; the message names the class.
pub fn check_mount_options(class: &StorageClass) -> Result<(), Fault> {
    let backing = parameters(class)?.backing(Some(Mode::Directory));
    let options = MountOptions::parse(class.mount_options.iter().flatten().map(String::as_str));
    options.and_then(|options| options.check(backing)).map_err(|fault| named(class, &fault))
}

/// Returns why no node can make volumes of `class`, if that is so.
pub fn flaw(class: &StorageClass) -> Option<Fault> {
    check_mount_options(class).err()
}

/// Returns whether claims of `class` get their volumes before their pods have a node.
pub fn binds_immediately(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer")
}

/// Returns whether volumes of `class` may be at `place`: one of its topology terms must hold, if it has any.
pub fn allows(class: &StorageClass, place: &Place) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    let (key, value) = (place.key(), place.value());
    terms.is_empty()
        || terms.iter().any(|term| {
            let requirements = term.match_label_expressions.as_deref().unwrap_or_default();
            requirements.iter().all(|wanted| wanted.key == key && wanted.values.iter().any(|allowed| allowed == value))
        })
}

/// Returns whether `class` may have a volume at `place` for which somebody has selected that node. Whether terms hold
/// that name other keys is known to the scheduler, but anybody may select a node in its place.
pub fn may_be_at(class: &StorageClass, place: &Place) -> bool {
    let terms = class.allowed_topologies.as_deref().unwrap_or_default();
    terms.is_empty()
        || terms.iter().any(|term| {
            let requirements = term.match_label_expressions.iter().flatten();
            requirements
                .filter(|wanted| wanted.key == place.key())
                .all(|wanted| wanted.values.iter().any(|allowed| allowed == place.value()))
        })
}

fn named(class: &StorageClass, fault: &Fault) -> Fault {
    Fault::new(fault.kind, format!("storage class {}: {fault}", class.metadata.name.as_deref().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn class(changes: Value) -> StorageClass {
        let mut class = json!({ "metadata": { "name": "local" }, "provisioner": "bulkhead.csi.local" });
        class.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(class).unwrap()
    }

    #[test]
    fn faults_name_the_class() {
        let unknown = parameters(&class(json!({ "parameters": { "colour": "red" } }))).unwrap_err().to_string();
        assert!(unknown.contains("storage class local") && unknown.contains("colour"), "{unknown}");
        let options = check_mount_options(&class(json!({ "mountOptions": ["noatime", "discard"] })));
        assert!(options.unwrap_err().to_string().contains("storage class local"));
        check_mount_options(&class(json!({ "mountOptions": ["noatime"] }))).unwrap();
        assert!(flaw(&class(json!({ "parameters": { "pool": "fast" } }))).is_none());
        let label = "context=system_u:object_r:container_file_t:s0";
        let in_images = json!({ "mountOptions": [label], "parameters": { "backing": "image" } });
        assert!(flaw(&class(in_images)).is_none());
        for flawed in [
            json!({ "parameters": { "colour": "red" } }),
            json!({ "mountOptions": ["discard"] }),
            json!({ "mountOptions": [label] }),
        ] {
            assert!(flaw(&class(flawed.clone())).is_some(), "{flawed}");
        }
    }

    #[test]
    fn one_term_must_hold_with_all_its_keys() {
        let place = Place::new(&"bulkhead.csi.local".parse().unwrap(), "here");
        let key = |key: &str, values: &[&str]| json!({ "key": key, "values": values });
        let node = |values: &[&str]| key("bulkhead.csi.local/node", values);
        let allowed = |terms: &[Value]| {
            let terms: Vec<_> = terms.iter().map(|keys| json!({ "matchLabelExpressions": keys })).collect();
            allows(&class(json!({ "allowedTopologies": terms })), &place)
        };
        assert!(allowed(&[]));
        assert!(allowed(&[json!([node(&["there", "here"])])]));
        assert!(allowed(&[json!([key("zone", &["a"])]), json!([node(&["here"])])]));
        assert!(!allowed(&[json!([node(&["there"])])]));
        assert!(!allowed(&[json!([node(&["here"]), key("zone", &["a"])])]), "an unknown key never holds");
        let may_be_here = |terms: &[Value]| {
            let terms: Vec<_> = terms.iter().map(|keys| json!({ "matchLabelExpressions": keys })).collect();
            may_be_at(&class(json!({ "allowedTopologies": terms })), &place)
        };
        assert!(may_be_here(&[]) && may_be_here(&[json!([node(&["there"])]), json!([key("zone", &["a"])])]));
        assert!(may_be_here(&[json!([node(&["here"]), key("zone", &["a"])])]), "the scheduler knows");
        assert!(!may_be_here(&[json!([node(&["there"]), key("zone", &["a"])])]));
    }
}
