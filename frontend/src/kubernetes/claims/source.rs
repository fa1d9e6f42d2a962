//! What a claim's volume is to begin as a copy of, and whether it can. Nothing here does any I/O.

use bulkhead_model::objects::names::{SNAPSHOT_GROUP, is_object_name, shown};
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::objects::volume_snapshot::VolumeSnapshot;
use bulkhead_model::objects::{claim, persistent_volume};
use bulkhead_model::quantity::Quantity;
use bulkhead_model::volumes::Mode;
use bulkhead_protocol::DriverName;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, TypedObjectReference};
use kube::ResourceExt;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::snapshots::bound::check_bound;

/// Another object in the claim's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source<'a> {
    /// A VolumeSnapshot of this name.
    Snapshot(&'a str),
    /// A claim of this name.
    Claim(&'a str),
}

/// Returns what the volume of `claim` is to begin as a copy of, if it is.
///
/// # Errors
/// When it is of another namespace or another API.
pub fn source(claim: &PersistentVolumeClaim) -> Result<Option<Source<'_>>, Failure> {
    let Some(source) = reference(claim).filter(|source| !is_for_populator(source)) else { return Ok(None) };
    if source.namespace.as_ref().is_some_and(|namespace| Some(namespace) != claim.metadata.namespace.as_ref()) {
        return Err(refused(
            "claim.spec.dataSourceRef.namespace is not supported: name a source in the claim's namespace",
        ));
    }
    if !is_object_name(&source.name) {
        // One of two.
        let (kind, name) = (&source.kind, shown(&source.name));
        return Err(Failure::Refused(format!(
            "claim.spec.dataSource: no {kind} can be called {name}: correct the name"
        )));
    }
    match source.kind.as_str() {
        "PersistentVolumeClaim" => Ok(Some(Source::Claim(&source.name))),
        _ if group(source) == SNAPSHOT_GROUP => Ok(Some(Source::Snapshot(&source.name))),
        _ => Err(Failure::Refused(format!(
            "claim.spec.dataSource: a VolumeSnapshot is of the API group {SNAPSHOT_GROUP}, not of {}",
            shown(group(source))
        ))),
    }
}

/// Returns whether the claim's source is of a kind that populators serve: any but the two that provisioners serve.
pub fn is_left_to_populator(claim: &PersistentVolumeClaim) -> bool {
    reference(claim).is_some_and(is_for_populator)
}

fn reference(claim: &PersistentVolumeClaim) -> Option<&TypedObjectReference> {
    claim.spec.as_ref()?.data_source_ref.as_ref()
}

fn is_for_populator(source: &TypedObjectReference) -> bool {
    let is_claim = source.kind == "PersistentVolumeClaim" && group(source).is_empty();
    !is_claim && source.kind != "VolumeSnapshot"
}

fn group(source: &TypedObjectReference) -> &str {
    source.api_group.as_deref().unwrap_or_default()
}

impl Source<'_> {
    /// How it is called in messages.
    pub fn shown(&self) -> String {
        let (kind, name) = match self {
            Self::Snapshot(name) => ("VolumeSnapshot", name),
            Self::Claim(name) => ("claim", name),
        };
        format!("{kind} {name}")
    }
}

/// Checks that `claim` can begin as a copy of `snapshot`, which is bound to `content`.
///
/// # Errors
/// When it cannot; the message is for the claim's owner.
pub fn check_snapshot(
    claim: &PersistentVolumeClaim,
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
    driver: &DriverName,
) -> Result<(), Failure> {
    check_bound(snapshot, content, driver)?;
    let name = snapshot.name_any();
    // An annotation permits it with other drivers. Here what a pod has written to a device would be mounted by the kernel.
    match content.mode().filter(|mode| *mode != claim::mode(claim)) {
        Some(mode) => Err(Failure::Refused(format!(
            "VolumeSnapshot {name} is of a {} volume, and so is every copy of it: set the claim's volumeMode to {}",
            mode.as_str(),
            as_in_claim(mode)
        ))),
        // Its size is known where it is.
        None => Ok(()),
    }
}

/// Checks that `claim` can begin as a copy of the volume of `source`, whose object is `object`.
///
/// # Errors
/// When it cannot; the message is for the claim's owner.
pub fn check_claim(
    claim: &PersistentVolumeClaim,
    source: &PersistentVolumeClaim,
    object: &PersistentVolume,
    driver: &DriverName,
) -> Result<(), Failure> {
    let name = source.name_any();
    if persistent_volume::phase(object) != "Bound" || persistent_volume::claim_uid(object) != Some(claim::uid(source)) {
        return Err(Failure::NotYet(format!("claim {name} is not bound")));
    }
    if !persistent_volume::is_of_driver(object, driver) {
        return Err(Failure::Refused(format!("claim {name} has a volume of another driver: use one of its classes")));
    }
    if claim::class(source).is_none() {
        return Err(Failure::Refused(format!("claim {name} names no storage class: its volume was not made for it")));
    }
    if claim::mode(source) != claim::mode(claim) {
        return Err(Failure::Refused(format!(
            "claim {name} has a {} volume, and so is every copy of it: set the claim's volumeMode to {}",
            claim::mode(source).as_str(),
            as_in_claim(claim::mode(source))
        )));
    }
    check_size(claim, &format!("claim {name}"), claim::requested_bytes(source))
}

/// The volume that `source` is bound to, if it can be copied.
///
/// # Errors
/// When it cannot, or not yet.
pub fn bound_volume(source: &PersistentVolumeClaim) -> Result<&str, Failure> {
    let name = source.name_any();
    if claim::is_being_deleted(source) {
        return Err(Failure::NotYet(format!("claim {name} is being deleted")));
    }
    claim::persistent_volume(source)
        .filter(|volume| is_object_name(volume))
        .ok_or_else(|| Failure::NotYet(format!("claim {name} has no volume yet")))
}

fn check_size(claim: &PersistentVolumeClaim, source: &str, size: Option<u64>) -> Result<(), Failure> {
    match size {
        Some(size) if claim::requested_bytes(claim).unwrap_or_default() < size => Err(Failure::Refused(format!(
            "{source} has {}, more than the claim requests: request at least as much",
            Quantity::from(size)
        ))),
        _ => Ok(()),
    }
}

fn as_in_claim(mode: Mode) -> &'static str {
    match mode {
        Mode::Block => "Block",
        Mode::Directory => "Filesystem",
    }
}

fn refused(message: &str) -> Failure {
    Failure::Refused(message.to_owned())
}

#[cfg(test)]
mod tests;
