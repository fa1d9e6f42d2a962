//! A VolumeSnapshot and the content that it is bound to: which one that is, and whether the snapshot can be used. Nothing
//! here does any I/O.

use bulkhead_model::objects::content::Content;
use bulkhead_model::objects::names::{is_object_name, shown};
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::objects::volume_snapshot::VolumeSnapshot;
use bulkhead_protocol::DriverName;
use kube::ResourceExt;

use crate::kubernetes::api::failure::Failure;

/// The content that `snapshot` is bound to, if it can be used.
///
/// # Errors
/// When it cannot, or not yet.
pub fn bound_content(snapshot: &VolumeSnapshot) -> Result<&str, Failure> {
    let name = snapshot.name_any();
    if snapshot.metadata.deletion_timestamp.is_some() {
        return Err(Failure::NotYet(format!("VolumeSnapshot {name} is being deleted")));
    }
    match snapshot.status.bound_volume_snapshot_content_name.as_deref() {
        Some(content) if snapshot.status.ready_to_use == Some(true) && is_object_name(content) => Ok(content),
        _ => Err(Failure::NotYet(format!("VolumeSnapshot {name} is not ready to be used yet"))),
    }
}

/// Checks that `snapshot`, which says that it is bound to `content`, is, and is a snapshot of `driver` that can be used.
///
/// # Errors
/// When it is not; the message is for its owner.
pub fn check_bound(
    snapshot: &VolumeSnapshot,
    content: &VolumeSnapshotContent,
    driver: &DriverName,
) -> Result<(), Failure> {
    let (name, bound) = (snapshot.name_any(), &content.spec.volume_snapshot_ref);
    let is_bound_to_it = bound.name == name
        && Some(&bound.namespace) == snapshot.metadata.namespace.as_ref()
        && snapshot.metadata.uid.is_some()
        && content.owner_uid() == snapshot.metadata.uid.as_deref();
    if !is_bound_to_it {
        return Err(Failure::NotYet(format!(
            "VolumeSnapshot {name} and its VolumeSnapshotContent do not name each other"
        )));
    }
    if content.spec.driver != driver.as_str() {
        let other = shown(&content.spec.driver);
        return Err(Failure::Refused(format!(
            "VolumeSnapshot {name} is of another driver, {other}: use one of its classes"
        )));
    }
    if !content.is_ready() {
        return Err(Failure::NotYet(format!("VolumeSnapshot {name} is not ready to be used yet")));
    }
    Ok(())
}
