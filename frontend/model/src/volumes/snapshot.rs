//! What a class of snapshots may say.

use super::Fault;

/// What a snapshotter may add to tell whose a snapshot is: it does not affect the snapshot.
const IDENTITY: [&str; 3] = [
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
];

/// The same of a group of snapshots.
const IDENTITY_OF_GROUP: [&str; 3] = [
    "csi.storage.k8s.io/volumegroupsnapshot/name",
    "csi.storage.k8s.io/volumegroupsnapshot/namespace",
    "csi.storage.k8s.io/volumegroupsnapshotcontent/name",
];

/// Checks the parameters of a snapshot. There are none: a snapshot is in the pool of its volume, and promised what it needs.
///
/// # Errors
/// On any that would have to have an effect.
pub fn check_snapshot_parameters<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<(), Fault> {
    check_none_but(&IDENTITY, keys)
}

/// Checks the parameters of a group of snapshots, in the same way.
///
/// # Errors
/// As [`check_snapshot_parameters`].
pub fn check_group_parameters<'a>(keys: impl IntoIterator<Item = &'a str>) -> Result<(), Fault> {
    check_none_but(&IDENTITY_OF_GROUP, keys)
}

fn check_none_but<'a>(known: &[&str], keys: impl IntoIterator<Item = &'a str>) -> Result<(), Fault> {
    match keys.into_iter().find(|key| !known.contains(key)) {
        Some(key) => Err(Fault::invalid(format!("unknown parameter {key:?}: snapshots have none; remove it"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::ErrorKind;

    use super::*;

    #[test]
    fn only_whose_it_is_may_be_said() {
        check_snapshot_parameters([]).unwrap();
        check_snapshot_parameters(IDENTITY).unwrap();
        check_group_parameters(IDENTITY_OF_GROUP).unwrap();
        check_group_parameters(IDENTITY).unwrap_err();
        for key in ["pool", "csi.storage.k8s.io/snapshotter-secret-name"] {
            let fault = check_snapshot_parameters([IDENTITY[0], key]).unwrap_err();
            assert!(fault.is(ErrorKind::Invalid) && fault.to_string().contains(key), "{fault}");
        }
    }
}
