//! Names in the Kubernetes API that Bulkhead reads or writes.

use std::borrow::Cow;

use crate::printable::printable;

/// On a claim: the provisioner that is to serve it (Kubernetes 1.23 and newer).
pub const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// On a claim: the provisioner under its older key, which the control plane still writes as well.
pub const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";

/// On a claim: the storage class, from before there was a field for it.
pub const CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";

/// On a claim: the node that the scheduler has chosen for its first pod.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// On a claim: set once it is bound for good.
pub const BOUND: &str = "pv.kubernetes.io/bind-completed";

/// On a claim: its last expansion needs nothing from the kubelet.
pub const NO_NODE_EXPANSION: &str = "volume.kubernetes.io/node-expansion-not-required";

/// On a PersistentVolume: the driver that made it.
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// On a PersistentVolume: the secret needed to delete it. Present but empty means that none is needed.
pub const DELETION_SECRET_NAME: &str = "volume.kubernetes.io/provisioner-deletion-secret-name";

/// The namespace of that secret.
pub const DELETION_SECRET_NAMESPACE: &str = "volume.kubernetes.io/provisioner-deletion-secret-namespace";

/// Among a PersistentVolume's attributes: the provisioner that made it.
pub const PROVISIONER_IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

/// On a PersistentVolume: keeps the object until its volume is deleted. The name is that of the usual provisioner, so
/// that every tool knows what it means.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// The API group of snapshots.
pub const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";

/// On a VolumeSnapshotContent: the node that handles it, as snapshot controllers say it.
pub const MANAGED_BY_NODE: &str = "snapshot.storage.kubernetes.io/managed-by";

/// On a VolumeSnapshotContent: keeps the object until its snapshot is deleted. The snapshot controller adds it.
pub const CONTENT_FINALIZER: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";

/// On a VolumeSnapshotContent: set while its snapshot is being taken.
pub const SNAPSHOT_BEING_CREATED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-created";

/// On a VolumeSnapshotContent: its VolumeSnapshot is being deleted.
pub const SNAPSHOT_BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";

/// On a VolumeSnapshotContent: the group of snapshots that its snapshot was taken with.
pub const SNAPSHOT_GROUP_HANDLE: &str = "groupsnapshot.storage.k8s.io/volumeGroupSnapshotHandle";

/// The API group of groups of snapshots.
pub const GROUP_SNAPSHOT_GROUP: &str = "groupsnapshot.storage.k8s.io";

/// On a VolumeGroupSnapshotContent: keeps the object until its snapshots are deleted. The snapshot controller adds it.
pub const GROUP_FINALIZER: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";

/// On a VolumeGroupSnapshotContent: set while its snapshots are being taken.
pub const GROUP_BEING_CREATED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-created";

/// On a VolumeGroupSnapshotContent: its VolumeGroupSnapshot is being deleted.
pub const GROUP_BEING_DELETED: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";

/// On a CSIStorageCapacity: the driver.
pub const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";

/// On a CSIStorageCapacity: the program that maintains it.
pub const MANAGED_BY_LABEL: &str = "csi.storage.k8s.io/managed-by";

/// The value of [`MANAGED_BY_LABEL`] on ours.
pub const MANAGED_BY: &str = "bulkhead";

/// On an agent's Lease: what of the agent of `driver` does not work. Missing if everything does.
pub fn not_ready(driver: &impl std::fmt::Display) -> String {
    format!("{driver}/not-ready")
}

/// On an agent's Lease: the conditions of pools that the agent of `driver` has reported.
pub fn reported_conditions(driver: &impl std::fmt::Display) -> String {
    format!("{driver}/reported-conditions")
}

/// On an agent's Lease: the pools of the node that take no new volumes of `driver`, as an operator wants it; their names,
/// with commas between them.
pub fn cordoned_pools(driver: &impl std::fmt::Display) -> String {
    format!("{driver}/cordoned-pools")
}

/// On a CSIStorageCapacity: why the node can make no volume of the class of `driver`, however much room there is. Missing
/// if it can.
pub fn obstacle(driver: &impl std::fmt::Display) -> String {
    format!("{driver}/obstacle")
}

/// The admission policies, and their bindings, that confine an agent to its own node's objects.
pub const AGENT_POLICIES: [&str; 9] = [
    "bulkhead-agent-volumes", "bulkhead-agent-claims", BINDING_POLICY, "bulkhead-agent-capacities",
    "bulkhead-agent-events", "bulkhead-agent-leases", "bulkhead-agent-tokens", "bulkhead-agent-contents",
    "bulkhead-agent-groups",
];

/// Selects them, by a label.
pub fn confines_agents(driver: &impl std::fmt::Display) -> String {
    format!("{driver}/confines=agent")
}

/// The one of them that judges whoever binds a claim, and not only agents.
pub const BINDING_POLICY: &str = "bulkhead-agent-bindings";

/// On a storage class: that an agent may make its volumes.
pub const PROVISION_VERB: &str = "provision";

/// On a storage class: that an agent may take its claims before a node is selected for them.
pub const TAKE_VERB: &str = "take";

/// The admission policy, and its binding, that copies a claim's selected node into a label.
pub const CLAIM_POLICY: &str = "bulkhead-claims";

/// The admission policy, and its binding, that copies a volume's node into a label, and gives an empty one to a volume that
/// does not name exactly one.
pub const VOLUME_POLICY: &str = "bulkhead-volumes";

/// The admission policy, and its binding, that copies into a label which node handles a VolumeSnapshotContent.
pub const CONTENT_POLICY: &str = "bulkhead-contents";

/// The admission policy, and its binding, that gives a VolumeGroupSnapshotContent such a label.
pub const GROUP_POLICY: &str = "bulkhead-groups";

/// The longest part that is shown of what no object can be called, in bytes.
const SHOWN: usize = 63;

/// What a message says where an object is named by what somebody else has written. It is quoted and short unless an
/// object can be called so: a sentence would read as one of the message, and one that fills it hides what the message
/// says.
pub fn shown(name: &str) -> Cow<'_, str> {
    match is_object_name(name) {
        true => name.into(),
        false => format!("\"{}\"", printable(&name.replace('"', "'"), SHOWN)).into(),
    }
}

/// Returns whether an object can have this name. What somebody has written where a name belongs becomes a part of a
/// request's path.
pub fn is_object_name(name: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = name.as_bytes();
    bytes.len() <= 253 && bytes.iter().copied().all(is_allowed) && is_end(bytes.first()) && is_end(bytes.last())
}

/// Returns whether this is a uid, as the API server gives each object one.
pub fn is_uid(text: &str) -> bool {
    let shape = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_never_more_than_a_part_of_a_path() {
        for name in ["a", "data-0", "pvc-1.node.example.org", &"a".repeat(253)] {
            assert!(is_object_name(name), "{name}");
        }
        for name in ["", ".", "..", "../x", "a/b", "a?watch=true", "a%2f", "a#b", "A", "a_b", "a\nb", "ä", "-a", "a."]
        {
            assert!(!is_object_name(name), "{name}");
        }
        assert!(!is_object_name(&"a".repeat(254)));
    }

    #[test]
    fn a_sentence_in_the_place_of_a_name_is_quoted_and_short() {
        assert_eq!(shown("data-0"), "data-0");
        assert_eq!(shown("x\": all is well\n"), "\"x': all is well\\n\"");
        let long = shown(&"all is well, ".repeat(100)).into_owned();
        assert!(long.len() <= SHOWN + 2 && long.ends_with("…\""), "{long}");
    }
}
