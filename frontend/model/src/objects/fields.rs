//! The fields of objects that are read here. Nothing else of them is kept.
//!
//! Whoever may create claims decides how large they are, up to what the API server stores, and the same memory serves
//! all volumes of the node. A field that is to be read is added here first.

use super::names::{
    BOUND, CLASS_BETA, GROUP_BEING_CREATED, GROUP_BEING_DELETED, MANAGED_BY_NODE, PROVISIONED_BY, PROVISIONER,
    PROVISIONER_BETA, SELECTED_NODE, SNAPSHOT_BEING_CREATED, SNAPSHOT_BEING_DELETED, SNAPSHOT_GROUP_HANDLE,
};

/// A value in an answer of the API server, by what is kept of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fields {
    /// A claim, a list of claims, or what a watch reports about one.
    Claim,
    /// A PersistentVolume, a list of them, or what a watch reports about one.
    PersistentVolume,
    /// A VolumeSnapshotContent or VolumeGroupSnapshotContent, a list of them, or what a watch reports about one.
    Content,
    /// A VolumeSnapshot.
    Snapshot,
    /// A pod, or a list of them.
    Pod,
    /// A node, or a list of them.
    Node,
    /// An object of which everything is read, a list of them, or what a watch reports about one.
    Other,
    /// Everything.
    All,
    /// A short text, a number, or a few of them.
    Short,
    /// Nothing but whether it is there.
    Presence,
    /// An amount of storage among others.
    Storage,
    /// Amounts that are requested, and limits to them.
    Resources,
    /// A reference to another object.
    Reference,
    /// The details of a refusal.
    Refusal,
    /// The metadata of a claim.
    ClaimMetadata,
    /// Its annotations.
    ClaimAnnotations,
    /// What its owner asks for.
    ClaimSpec,
    /// What the control plane says about it.
    ClaimStatus,
    /// Which attributes its volume is to have, and how far that is.
    ClaimModification,
    /// The conditions of an object.
    Conditions,
    /// The metadata of a PersistentVolume.
    VolumeMetadata,
    /// Its annotations.
    VolumeAnnotations,
    /// What it is.
    VolumeSpec,
    /// Its volume, as its driver knows it.
    VolumeSource,
    /// What the control plane says about it.
    VolumeStatus,
    /// Its metadata.
    ContentMetadata,
    /// Its labels.
    ContentLabels,
    /// Its annotations.
    ContentAnnotations,
    /// What it is.
    ContentSpec,
    /// What its snapshot or group is taken of, or is called.
    ContentSource,
    /// What a group is called.
    ContentGroup,
    /// What its driver has said about it.
    ContentStatus,
    /// Why that failed.
    ContentError,
    /// The metadata of a VolumeSnapshot.
    SnapshotMetadata,
    /// What its owner asks for.
    SnapshotSpec,
    /// What it is to be of.
    SnapshotSource,
    /// What the snapshot controller says about it.
    SnapshotStatus,
    /// The metadata of a pod.
    PodMetadata,
    /// To what it belongs.
    PodOwners,
    /// What it is.
    PodSpec,
    /// Its containers.
    PodContainers,
    /// The ports of one.
    PodPorts,
    /// Its volumes.
    PodVolumes,
    /// The claim of one.
    PodClaim,
    /// What the kubelet says about it.
    PodStatus,
    /// What the kubelet says about its containers.
    PodContainerStatuses,
    /// The state of one.
    PodContainerState,
    /// Why it does not run.
    PodContainerEnd,
    /// The metadata of a node.
    NodeMetadata,
    /// Its labels.
    NodeLabels,
    /// What the kubelet says about it.
    NodeStatus,
    /// The programs on it.
    NodeInfo,
    /// The metadata of any other object.
    OtherMetadata,
}

impl Fields {
    /// Those of an answer about the objects that the API calls `resource`.
    pub fn of(resource: &str) -> Self {
        match resource {
            "persistentvolumeclaims" => Self::Claim,
            "persistentvolumes" => Self::PersistentVolume,
            "volumesnapshotcontents" | "volumegroupsnapshotcontents" => Self::Content,
            "volumesnapshots" => Self::Snapshot,
            "pods" => Self::Pod,
            "nodes" => Self::Node,
            _ => Self::Other,
        }
    }

    /// Those of the member called `key`; `None` if it is not read.
    pub fn of_member(self, key: &str) -> Option<Self> {
        match (self, key) {
            (Self::All, _) => Some(Self::All),
            (
                Self::Claim
                | Self::PersistentVolume
                | Self::Content
                | Self::Snapshot
                | Self::Pod
                | Self::Node
                | Self::Other,
                "items" | "object",
            ) => Some(self),
            (
                Self::Claim | Self::PersistentVolume | Self::Content | Self::Snapshot | Self::Pod | Self::Node,
                "apiVersion" | "kind" | "type" | "code" | "reason" | "message",
            ) => Some(Self::All),
            (
                Self::Claim | Self::PersistentVolume | Self::Content | Self::Snapshot | Self::Pod | Self::Node,
                "details",
            ) => Some(Self::Refusal),
            (Self::Refusal, "retryAfterSeconds") => Some(Self::Short),
            (Self::Claim, "metadata") => Some(Self::ClaimMetadata),
            (Self::Claim, "spec") => Some(Self::ClaimSpec),
            (Self::Claim, "status") => Some(Self::ClaimStatus),
            (Self::PersistentVolume, "metadata") => Some(Self::VolumeMetadata),
            (Self::PersistentVolume, "spec") => Some(Self::VolumeSpec),
            (Self::PersistentVolume, "status") => Some(Self::VolumeStatus),
            (Self::Other, "metadata") => Some(Self::OtherMetadata),
            (Self::OtherMetadata, "managedFields") => None,
            (Self::Other | Self::OtherMetadata, _) => Some(Self::All),

            (Self::ClaimMetadata | Self::VolumeMetadata, "name" | "namespace" | "uid" | "resourceVersion") => {
                Some(Self::Short)
            }
            (Self::ClaimMetadata | Self::VolumeMetadata, "creationTimestamp" | "deletionTimestamp") => {
                Some(Self::Short)
            }
            // Of a list: what to ask for the next page with.
            (Self::ClaimMetadata | Self::VolumeMetadata, "continue") => Some(Self::All),
            (Self::ClaimMetadata, "annotations") => Some(Self::ClaimAnnotations),
            (Self::ClaimAnnotations, PROVISIONER | PROVISIONER_BETA | CLASS_BETA | SELECTED_NODE | BOUND) => {
                Some(Self::Short)
            }
            (Self::VolumeMetadata, "annotations") => Some(Self::VolumeAnnotations),
            (Self::VolumeAnnotations, PROVISIONED_BY) => Some(Self::Short),
            (Self::VolumeMetadata, "finalizers") => Some(Self::All),

            (Self::ClaimSpec, "accessModes" | "storageClassName" | "volumeAttributesClassName") => Some(Self::Short),
            (Self::ClaimSpec, "volumeMode" | "volumeName") => Some(Self::Short),
            (Self::ClaimSpec, "resources") => Some(Self::Resources),
            (Self::Resources, "requests") => Some(Self::Storage),
            (Self::Storage, "storage") => Some(Self::Short),
            (Self::ClaimSpec, "selector") => Some(Self::Presence),
            (Self::ClaimSpec, "dataSourceRef") => Some(Self::Reference),
            (Self::Reference, "apiGroup" | "kind" | "namespace" | "name" | "uid") => Some(Self::Short),
            (Self::ClaimStatus, "phase") => Some(Self::Short),
            (Self::ClaimStatus, "currentVolumeAttributesClassName") => Some(Self::Short),
            (Self::ClaimStatus, "modifyVolumeStatus") => Some(Self::ClaimModification),
            (Self::ClaimModification, "status" | "targetVolumeAttributesClassName") => Some(Self::Short),
            (Self::ClaimStatus | Self::PodStatus | Self::NodeStatus, "conditions") => Some(Self::Conditions),
            (Self::Conditions, "type" | "status") => Some(Self::Short),
            (Self::ClaimStatus, "capacity" | "allocatedResources" | "allocatedResourceStatuses") => Some(Self::Storage),

            (Self::VolumeSpec, "claimRef") => Some(Self::Reference),
            (Self::VolumeSpec, "csi") => Some(Self::VolumeSource),
            (Self::VolumeSource, "driver" | "volumeHandle" | "fsType") => Some(Self::Short),
            (Self::VolumeSpec, "accessModes" | "mountOptions" | "volumeMode") => Some(Self::Short),
            (Self::VolumeSpec, "storageClassName" | "volumeAttributesClassName") => Some(Self::Short),
            (Self::VolumeSpec, "capacity") => Some(Self::Storage),
            // A part of it would say something else.
            (Self::VolumeSpec, "nodeAffinity") => Some(Self::All),
            (Self::VolumeSpec, "persistentVolumeReclaimPolicy") => Some(Self::Short),
            (Self::VolumeStatus, "phase") => Some(Self::Short),

            (Self::Content, "metadata") => Some(Self::ContentMetadata),
            (Self::Content, "spec") => Some(Self::ContentSpec),
            (Self::Content, "status") => Some(Self::ContentStatus),
            (Self::ContentMetadata | Self::SnapshotMetadata, "name" | "uid" | "resourceVersion") => Some(Self::Short),
            (Self::ContentMetadata | Self::SnapshotMetadata, "creationTimestamp" | "deletionTimestamp") => {
                Some(Self::Short)
            }
            (Self::ContentMetadata, "continue" | "finalizers") => Some(Self::All),
            (Self::ContentMetadata, "labels") => Some(Self::ContentLabels),
            (Self::ContentLabels, MANAGED_BY_NODE) => Some(Self::Short),
            // That of our own node begins with the driver's name.
            (Self::ContentLabels, key) if key.ends_with("/node") => Some(Self::Short),
            (Self::ContentMetadata, "annotations") => Some(Self::ContentAnnotations),
            (Self::ContentAnnotations, SNAPSHOT_BEING_CREATED | SNAPSHOT_BEING_DELETED | SNAPSHOT_GROUP_HANDLE) => {
                Some(Self::Short)
            }
            (Self::ContentAnnotations, GROUP_BEING_CREATED | GROUP_BEING_DELETED) => Some(Self::Short),
            (Self::ContentSpec, "driver" | "deletionPolicy" | "sourceVolumeMode") => Some(Self::Short),
            (Self::ContentSpec, "volumeSnapshotClassName" | "volumeGroupSnapshotClassName") => Some(Self::Short),
            (Self::ContentSpec, "source") => Some(Self::ContentSource),
            (Self::ContentSource, "volumeHandle" | "snapshotHandle" | "volumeHandles") => Some(Self::Short),
            (Self::ContentSource, "groupSnapshotHandles") => Some(Self::ContentGroup),
            (Self::ContentGroup, "volumeGroupSnapshotHandle" | "volumeSnapshotHandles") => Some(Self::Short),
            (Self::ContentSpec, "volumeSnapshotRef" | "volumeGroupSnapshotRef") => Some(Self::Reference),
            (Self::ContentStatus, "snapshotHandle" | "readyToUse" | "creationTime" | "restoreSize") => {
                Some(Self::Short)
            }
            (Self::ContentStatus, "volumeGroupSnapshotHandle") => Some(Self::Short),
            (Self::ContentStatus, "error") => Some(Self::ContentError),
            (Self::ContentError, "message") => Some(Self::Short),
            (Self::Snapshot, "metadata") => Some(Self::SnapshotMetadata),
            (Self::SnapshotMetadata, "namespace") => Some(Self::Short),
            (Self::SnapshotMetadata, "continue") => Some(Self::All),
            (Self::Snapshot, "spec") => Some(Self::SnapshotSpec),
            (Self::SnapshotSpec, "source") => Some(Self::SnapshotSource),
            (Self::SnapshotSource, "persistentVolumeClaimName") => Some(Self::Short),
            (Self::Snapshot, "status") => Some(Self::SnapshotStatus),
            (Self::SnapshotStatus, "boundVolumeSnapshotContentName" | "readyToUse") => Some(Self::Short),
            (Self::SnapshotStatus, "error") => Some(Self::ContentError),

            (Self::Pod, "metadata") => Some(Self::PodMetadata),
            (Self::Pod, "spec") => Some(Self::PodSpec),
            (Self::Pod, "status") => Some(Self::PodStatus),
            (Self::PodMetadata, "name" | "namespace" | "uid") => Some(Self::Short),
            (Self::PodMetadata | Self::NodeMetadata, "continue") => Some(Self::All),
            (Self::PodMetadata, "ownerReferences") => Some(Self::PodOwners),
            (Self::PodOwners, "controller") => Some(Self::Short),
            (Self::PodSpec, "nodeName") => Some(Self::Short),
            (Self::PodSpec, "initContainers" | "containers") => Some(Self::PodContainers),
            (Self::PodContainers, "name" | "image") => Some(Self::Short),
            (Self::PodContainers, "ports") => Some(Self::PodPorts),
            (Self::PodPorts, "name" | "containerPort") => Some(Self::Short),
            (Self::PodSpec, "volumes") => Some(Self::PodVolumes),
            (Self::PodVolumes, "name") => Some(Self::Short),
            (Self::PodVolumes, "persistentVolumeClaim") => Some(Self::PodClaim),
            (Self::PodVolumes, "ephemeral") => Some(Self::Presence),
            (Self::PodClaim, "claimName") => Some(Self::Short),
            (Self::PodStatus, "containerStatuses" | "initContainerStatuses") => Some(Self::PodContainerStatuses),
            (Self::PodContainerStatuses, "name" | "ready" | "restartCount") => Some(Self::Short),
            (Self::PodContainerStatuses, "state" | "lastState") => Some(Self::PodContainerState),
            (Self::PodContainerState, "terminated" | "waiting") => Some(Self::PodContainerEnd),
            (Self::PodContainerEnd, "reason") => Some(Self::Short),
            // The kubelet keeps 4 KiB of it.
            (Self::PodContainerEnd, "message") => Some(Self::All),

            (Self::Node, "metadata") => Some(Self::NodeMetadata),
            (Self::Node, "status") => Some(Self::NodeStatus),
            (Self::NodeMetadata, "name") => Some(Self::Short),
            (Self::NodeMetadata, "labels") => Some(Self::NodeLabels),
            // That of the driver's nodes begins with its name.
            (Self::NodeLabels, key) if key.ends_with("/node") => Some(Self::Short),
            (Self::NodeStatus, "nodeInfo") => Some(Self::NodeInfo),
            (Self::NodeInfo, "kernelVersion" | "kubeletVersion" | "containerRuntimeVersion" | "osImage") => {
                Some(Self::Short)
            }
            _ => None,
        }
    }
}
