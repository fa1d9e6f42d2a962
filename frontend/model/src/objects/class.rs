//! What the classes of snapshots have in common with those of groups. There is nothing to choose about a snapshot here, so that
//! a class says little.

use std::collections::BTreeMap;

use kube::core::ClusterResourceScope;
use kube::{Resource, ResourceExt};

use crate::printable::printable;

/// Where parameters begin that are for whoever takes a snapshot, and not for its driver.
const RESERVED: &str = "csi.storage.k8s.io/";

/// How much of a parameter's name is shown, in bytes.
const LONGEST_NAME: usize = 120;

/// A VolumeSnapshotClass, or a VolumeGroupSnapshotClass.
pub trait Class: Resource<DynamicType = (), Scope = ClusterResourceScope> + Sized {
    /// The field that names it.
    const FIELD: &'static str;

    /// The parameters that only say whose a snapshot is.
    const IDENTITY: [&'static str; 3];

    /// The driver whose snapshots are of this class.
    fn driver(&self) -> &str;

    /// What becomes of them once nobody wants them.
    fn deletion_policy(&self) -> &str;

    /// Settings.
    fn parameters(&self) -> Option<&BTreeMap<String, String>>;

    /// Returns why no snapshot can be taken with it, if that is so: nothing that it asks for must silently have no
    /// effect.
    fn flaw(&self) -> Option<String> {
        let is_known = |key: &str| key.strip_prefix(RESERVED).is_some_and(|key| Self::IDENTITY.contains(&key));
        // Some say there again what the class's own field says, and so does Kubernetes' own suite.
        let is_said = |key: &str, value: &str| key == "deletionPolicy" && value == self.deletion_policy();
        let mut parameters = self.parameters().into_iter().flatten();
        let (key, _) = parameters.find(|(key, value)| !is_known(key) && !is_said(key, value))?;
        let (class, shown) = (self.name_any(), printable(key, LONGEST_NAME));
        Some(if key.starts_with(RESERVED) && key.contains("secret") {
            format!("snapshot class {class} names a secret ({shown}), and this driver uses none: remove the parameter")
        } else {
            format!("snapshot class {class} has the parameter {shown}, but there are none for snapshots: remove it")
        })
    }
}
