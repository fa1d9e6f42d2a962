//! What is done about a VolumeSnapshotContent.

use bulkhead_model::objects::content::{Content, Source};
use bulkhead_model::objects::names::{CONTENT_POLICY, is_uid, shown};
use bulkhead_model::objects::snapshot_class::VolumeSnapshotClass;
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::volumes::identify;
use kube::ResourceExt;
use serde_json::Value;

use super::classes::check_class;
use super::kind::{Kind, Reasons, is_found, is_volume_of_node};
use super::status;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::holdings::{TakenFor, charge_snapshot, note_snapshot, settle_snapshots};
use crate::volumes::existing;

impl Kind for VolumeSnapshotContent {
    const CALLED: &'static str = "snapshot";
    const MANY: &'static str = "snapshots";
    const EVERYTHING: &'static str = "all VolumeSnapshotContents";
    const POLICY: &'static str = CONTENT_POLICY;
    const REASONS: Reasons = Reasons {
        creation_failed: Reason::SnapshotCreationFailed,
        check_failed: Reason::SnapshotContentCheckandUpdateFailed,
        delete_failed: Reason::SnapshotDeleteError,
    };

    fn wanted(&self) -> String {
        match self.source() {
            Some(Source::Existing(handle)) => format!("snapshot {}", shown(handle)),
            source => format!("volume {}", shown(volume_of(source))),
        }
    }

    async fn is_here(&self, context: &Context) -> Result<bool, Failure> {
        match self.source() {
            Some(Source::Existing(handle)) => {
                let Ok(snapshot) = existing(handle) else { return Ok(false) };
                is_found(context.volumes.snapshot(&snapshot).await)
            }
            source => Ok(is_volume_of_node(context, volume_of(source))),
        }
    }

    async fn check(&self, context: &Context) -> Result<(), Failure> {
        check_class::<VolumeSnapshotClass>(context, self.class()).await
    }

    async fn take(&self, context: &Context, name: &str) -> Result<Value, Failure> {
        let volume = existing(volume_of(self.source()))?;
        let namespace = &self.owner().namespace;
        let charge = charge_snapshot(context, namespace, &volume, &identify(name)?.0).await?;
        let taken = context.volumes.create_snapshot(volume, name).await;
        settle_snapshots(context, Vec::from_iter(charge), taken.clone().map(|taken| vec![taken])).await?;
        let taken = taken?;
        note_snapshot(context, TakenFor::Snapshot(self.owner()), &taken).await;
        context.capacity_changed.notify_one();
        Ok(status::ready(&taken))
    }

    async fn find(&self, context: &Context, handle: &str) -> Result<Value, Failure> {
        Ok(status::ready(&context.volumes.snapshot(&existing(handle)?).await?))
    }

    async fn delete(&self, context: &Context, handle: &str) -> Result<(), Failure> {
        if let Some(other) = other_that_needs(context, self, handle) {
            return Err(Failure::NotYet(format!(
                "VolumeSnapshotContent {other} names the same snapshot, {handle}: it will be deleted once no other object needs it; to keep it for {other}, set deletionPolicy of this object to Retain"
            )));
        }
        // An invalid id names no snapshot.
        let Ok(snapshot) = existing(handle) else { return Ok(()) };
        context.volumes.delete_snapshot(snapshot.clone()).await?;
        context.ledger.forget(&snapshot);
        Ok(())
    }

    fn status_when_deleted() -> Value {
        status::deleted()
    }
}

/// The volume that a snapshot is to be taken of.
fn volume_of(source: Option<Source<'_>>) -> &str {
    source.and_then(Source::first_volume).unwrap_or_default()
}

/// Another object that names the same snapshot, and is not about to go with it.
fn other_that_needs(context: &Context, content: &VolumeSnapshotContent, handle: &str) -> Option<String> {
    let needs = |other: &VolumeSnapshotContent| {
        other.object_uid() != content.object_uid() && !other.takes_along() && other.handle().as_deref() == Some(handle)
    };
    // It is named, or called after the uid of its VolumeSnapshot.
    let uid = handle.strip_prefix("snapshot-").filter(|uid| is_uid(uid));
    let other = match uid {
        Some(uid) => context.stores.contents.mentioning(uid).find(needs),
        None => context.stores.contents.all().find(needs),
    };
    other.map(|other| other.name_any())
}
