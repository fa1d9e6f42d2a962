//! What the objects of snapshots have in common with those of groups of snapshots: each says what is to be taken or is there
//! already, whose it is, and what has become of it.

use k8s_openapi::serde::{Deserialize, Serialize};
use kube::core::ClusterResourceScope;
use kube::{Resource, ResourceExt};

use super::names::MANAGED_BY_NODE;
use crate::volumes::Place;

/// A VolumeSnapshotContent, or a VolumeGroupSnapshotContent.
pub trait Content: Resource<DynamicType = (), Scope = ClusterResourceScope> + Sized {
    /// The kind of the object that its owner has made, and that is bound to it.
    const OWNER: &'static str;

    /// Keeps the object until its driver lets it go. The snapshot controller adds it.
    const FINALIZER: &'static str;

    /// The annotation that is set while an attempt to take it is in progress.
    const BEING_CREATED: &'static str;

    /// The annotation that says that its owner is being deleted.
    const BEING_DELETED: &'static str;

    /// The driver that it is of.
    fn driver(&self) -> &str;

    /// Whether what it stands for is deleted with it: `Delete` or `Retain`.
    fn deletion_policy(&self) -> &str;

    /// The class that it was made with.
    fn class(&self) -> Option<&str>;

    /// The object that it is bound to, or is for.
    fn owner(&self) -> &Reference;

    /// Where it comes from.
    fn source(&self) -> Option<Source<'_>>;

    /// The name under which it is taken for the owner with this uid, as its driver knows it.
    fn name_for(uid: &str) -> String;

    /// The driver's name for it, also if it has yet to be taken. It follows from what no agent can change.
    fn handle(&self) -> Option<String>;

    /// What has been said about it. Whoever has the token of some agent may have said it: nothing is deleted or copied
    /// because of it.
    fn said(&self) -> Said<'_>;

    /// Returns whether it is one of a group that were taken together: with the group it is taken, and deleted.
    fn is_of_group(&self) -> bool {
        false
    }

    /// Its uid. The API server gives every object one.
    fn object_uid(&self) -> &str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// The uid of its owner, if it is bound to one.
    fn owner_uid(&self) -> Option<&str> {
        self.owner().uid.as_deref().filter(|uid| !uid.is_empty())
    }

    /// Returns whether volumes can be made from it, as was said of what has its own handle.
    fn is_ready(&self) -> bool {
        self.is_said_to_be_ready() && self.said().handle == self.handle().as_deref()
    }

    /// Returns whether volumes can be made from it, as was said of whatever there is.
    fn is_said_to_be_ready(&self) -> bool {
        self.said().is_ready == Some(true)
    }

    /// Returns what was last said to have failed.
    fn error(&self) -> Option<&str> {
        self.said().error
    }

    /// Returns whether what it stands for is deleted along with it.
    fn deletes_snapshot(&self) -> bool {
        self.deletion_policy() == "Delete" && !self.is_of_group()
    }

    /// Returns whether it is being deleted.
    fn is_being_deleted(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    /// Returns whether it is about to go, and what it stands for with it.
    fn takes_along(&self) -> bool {
        self.is_being_deleted() && self.deletes_snapshot()
    }

    /// Returns whether its owner is being deleted.
    fn is_released(&self) -> bool {
        self.annotations().contains_key(Self::BEING_DELETED)
    }

    /// Returns whether an attempt to take it has begun.
    fn is_being_created(&self) -> bool {
        self.annotations().contains_key(Self::BEING_CREATED)
    }

    /// Returns whether it stays until its driver lets it go.
    fn has_finalizer(&self) -> bool {
        self.finalizers().iter().any(|name| name == Self::FINALIZER)
    }

    /// The node that handles it, as labels say: the one that snapshot controllers give, or else ours.
    fn node(&self, place: &Place) -> Option<&str> {
        let labels = self.labels();
        let node = labels.get(MANAGED_BY_NODE).or_else(|| labels.get(place.key()));
        node.map(String::as_str).filter(|node| !node.is_empty())
    }
}

/// Where a snapshot or a group comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// It is to be taken of these volumes; a snapshot is of one.
    Volumes(&'a [String]),
    /// It exists already, under this name.
    Existing(&'a str),
}

impl<'a> Source<'a> {
    /// The first of the volumes that it is to be taken of, whose node handles it.
    pub fn first_volume(self) -> Option<&'a str> {
        match self {
            Self::Volumes(volumes) => volumes.first().map(String::as_str),
            Self::Existing(_) => None,
        }
    }
}

/// Which object a content is bound to. Without a uid it waits for one of that name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct Reference {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: Option<String>,
}

/// What has been said about a snapshot or a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said<'a> {
    /// The driver's name for it.
    pub handle: Option<&'a str>,
    /// Whether volumes can be made from it.
    pub is_ready: Option<bool>,
    /// Why the last attempt has failed, if it has.
    pub error: Option<&'a str>,
}

/// Why an attempt has failed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(crate = "k8s_openapi::serde", default)]
pub struct ContentError {
    /// For the owner.
    pub message: Option<String>,
}
