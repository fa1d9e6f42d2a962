//! What a test has made by way of either process and not undone: its rig undoes that at the end.
//!
//! Only what was granted counts. What a refused call leaves behind, or one that was granted an undo, is a leak.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_protocol::Request;

use crate::csi::CsiClient;
use crate::csi::v1::{DeleteSnapshotRequest, DeleteVolumeRequest, NodeUnpublishVolumeRequest};
use crate::helper::HelperClient;
use crate::{pace, wait};

/// A call that undoes another one.
#[derive(Clone, Debug, PartialEq)]
pub enum Undo {
    /// Asks the frontend to unpublish a volume.
    Unpublish(NodeUnpublishVolumeRequest),
    /// Asks the frontend to delete a volume.
    DeleteVolume(DeleteVolumeRequest),
    /// Asks the frontend to delete a snapshot.
    DeleteSnapshot(DeleteSnapshotRequest),
    /// Asks the helper.
    Ask(Request),
}

/// What an undo removes.
enum Thing<'a> {
    Volume(&'a str),
    Snapshot(&'a str),
    Publication(&'a str, &'a Path),
    Device(&'a str),
    Filesystem(&'a str),
}

/// What is still to be undone, the newest last. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Pending(Arc<Mutex<Vec<Undo>>>);

impl Pending {
    /// Records that something was made, which this call undoes.
    pub fn made(&self, undo: Undo) {
        let mut pending = self.lock();
        if !pending.contains(&undo) {
            pending.push(undo);
        }
    }

    /// Records that this call was granted.
    pub fn undone(&self, undo: &Undo) {
        self.lock().retain(|other| !undo.settles(other));
    }

    /// Records that the helper has granted a request.
    pub fn granted(&self, request: &Request) {
        let undoing = undoing(request);
        if undoing.is_empty() {
            self.undone(&Undo::Ask(request.clone()));
        }
        undoing.into_iter().for_each(|undo| self.made(Undo::Ask(undo)));
    }

    /// Takes everything, the newest first.
    pub fn take(&self) -> Vec<Undo> {
        self.lock().drain(..).rev().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Undo>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Undo {
    /// Carries it out, by way of the frontend if that is what it was made by.
    pub fn carry_out(&self, helper: &HelperClient, csi: Option<&CsiClient>) -> Result<()> {
        let csi = csi.context("the frontend does not run");
        let done = match self {
            Self::Unpublish(call) => csi.and_then(|csi| Ok(csi.node_unpublish_volume(call.clone()).map(drop)?)),
            Self::DeleteVolume(call) => csi.and_then(|csi| {
                // Whoever else deletes it just now may take long.
                wait::until(pace::patience(Duration::from_secs(30)), || {
                    Ok(csi.delete_volume(call.clone()).map(drop)?)
                })
            }),
            Self::DeleteSnapshot(call) => csi.and_then(|csi| Ok(csi.delete_snapshot(call.clone()).map(drop)?)),
            Self::Ask(request) => helper.ask_patiently(request).map(drop),
        };
        done.with_context(|| format!("undo what the test has made: {self:?}"))
    }

    /// Returns whether it is the frontend that is asked.
    pub fn is_for_the_frontend(&self) -> bool {
        !matches!(self, Self::Ask(_))
    }

    fn removes(&self) -> Option<Thing<'_>> {
        Some(match self {
            Self::Unpublish(call) => Thing::Publication(&call.volume_id, Path::new(&call.target_path)),
            Self::DeleteVolume(call) => Thing::Volume(&call.volume_id),
            Self::DeleteSnapshot(call) => Thing::Snapshot(&call.snapshot_id),
            Self::Ask(Request::Unmount { volume, target } | Request::RemoveDevice { volume, target }) => {
                Thing::Publication(volume.as_str(), Path::new(target.path.as_str()))
            }
            Self::Ask(Request::Delete { volume } | Request::DeleteUnused { volume }) => Thing::Volume(volume.as_str()),
            Self::Ask(Request::DeleteSnapshot { snapshot }) => Thing::Snapshot(snapshot.as_str()),
            Self::Ask(Request::LoopDetach { volume }) => Thing::Device(volume.as_str()),
            Self::Ask(Request::UnmountFilesystem { volume }) => Thing::Filesystem(volume.as_str()),
            Self::Ask(_) => return None,
        })
    }

    /// Returns whether there is nothing left for the other to remove once this was granted, whichever process was
    /// asked.
    fn settles(&self, other: &Self) -> bool {
        let (Some(done), Some(other)) = (self.removes(), other.removes()) else { return false };
        match (done, other) {
            // The helper knows a target by its path below a publish directory.
            (Thing::Publication(volume, at), Thing::Publication(other, place)) => {
                let by_both = at.is_absolute() != place.is_absolute();
                volume == other && (at == place || by_both && (at.ends_with(place) || place.ends_with(at)))
            }
            (Thing::Snapshot(one), Thing::Snapshot(other))
            | (Thing::Device(one), Thing::Device(other))
            | (Thing::Filesystem(one), Thing::Filesystem(other))
            // A volume that is published is not deleted, and one that is not goes with its device.
            | (
                Thing::Volume(one),
                Thing::Volume(other) | Thing::Publication(other, _) | Thing::Device(other) | Thing::Filesystem(other),
            ) => one == other,
            _ => false,
        }
    }
}

/// The requests that undo this one.
fn undoing(request: &Request) -> Vec<Request> {
    match request.clone() {
        Request::Create { volume, .. } | Request::CreateFrom { volume, .. } => vec![Request::Delete { volume }],
        Request::CreateSnapshot { snapshot, .. } => vec![Request::DeleteSnapshot { snapshot }],
        Request::CreateGroup { members, .. } => {
            let members = members.into_vec().into_iter();
            members.map(|member| Request::DeleteSnapshot { snapshot: member.snapshot }).collect()
        }
        Request::BindMount { volume, target, .. } => vec![Request::Unmount { volume, target }],
        Request::MakeDevice { volume, target, .. } => vec![Request::RemoveDevice { volume, target }],
        Request::LoopAttach { volume, .. } => vec![Request::LoopDetach { volume }],
        Request::MountFilesystem { volume } | Request::MountLabelled { volume, .. } => {
            vec![Request::UnmountFilesystem { volume }]
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csi::requests::{delete, unpublish};
    use crate::helper::{self, attach, bind, create, image_spec, unbind};

    #[test]
    fn what_is_left_is_undone_the_newest_first() {
        let pending = Pending::default();
        let spec = image_spec(1 << 20);
        for request in [create("v1", spec), attach("v1"), create("v2", spec), create("v1", spec), helper::delete("v2")]
        {
            pending.granted(&request);
        }
        let left = [helper::detach("v1"), helper::delete("v1")].map(Undo::Ask);
        assert_eq!(pending.take(), left);
    }

    #[test]
    fn either_process_undoes_what_the_other_was_asked_for() {
        let pending = Pending::default();
        pending.made(Undo::DeleteVolume(delete("v1")));
        pending.made(Undo::Unpublish(unpublish("v1", Path::new("/publish/deep/t"))));
        pending.granted(&bind("v1", "other"));
        pending.granted(&unbind("v1", "deep/t"));
        assert_eq!(pending.lock().len(), 2);
        pending.granted(&helper::delete("v1"));
        assert_eq!(pending.take(), []);
    }
}
