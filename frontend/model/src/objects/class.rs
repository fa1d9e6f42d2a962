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

    /// Settings.
    fn parameters(&self) -> Option<&BTreeMap<String, String>>;

    /// Returns why no snapshot can be taken with it, if that is so: nothing that it asks for must silently have no
    /// effect.
    fn flaw(&self) -> Option<String> {
        let is_known = |key: &str| key.strip_prefix(RESERVED).is_some_and(|key| Self::IDENTITY.contains(&key));
        let key = self.parameters().into_iter().flat_map(BTreeMap::keys).find(|key| !is_known(key))?;
        let (class, shown) = (self.name_any(), printable(key, LONGEST_NAME));
        Some(if key.starts_with(RESERVED) && key.contains("secret") {
            format!("snapshot class {class} names a secret ({shown}), and this driver uses none: remove the parameter")
        } else {
            format!("snapshot class {class} has the parameter {shown}, but there are none for snapshots: remove it")
        })
    }
}
