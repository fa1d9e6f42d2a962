//! What is done about a VolumeGroupSnapshotContent.

use std::collections::BTreeSet;

use bulkhead_model::objects::content::{Content, Source};
use bulkhead_model::objects::group_class::VolumeGroupSnapshotClass;
use bulkhead_model::objects::group_content::VolumeGroupSnapshotContent;
use bulkhead_model::objects::names::{GROUP_POLICY, shown};
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::volumes::{group_of, identify_group, snapshot_in};
use bulkhead_protocol::{Snapshot, VolumeId};
use kube::ResourceExt;
use serde_json::Value;

use super::classes::check_class;
use super::kind::{Kind, Reasons, is_found, is_volume_of_node};
use super::status;
use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::holdings::{TakenFor, charge_snapshot, note_snapshot, settle_snapshots};
use crate::volumes::{Group, existing};

impl Kind for VolumeGroupSnapshotContent {
    const CALLED: &'static str = "group of snapshots";
    const MANY: &'static str = "groups of snapshots";
    const EVERYTHING: &'static str = "all VolumeGroupSnapshotContents";
    const POLICY: &'static str = GROUP_POLICY;
    const REASONS: Reasons = Reasons {
        creation_failed: Reason::GroupSnapshotCreationFailed,
        check_failed: Reason::GroupSnapshotContentCheckandUpdateFailed,
        delete_failed: Reason::GroupSnapshotDeleteError,
    };

    fn wanted(&self) -> String {
        match self.source() {
            Some(Source::Existing(handle)) => format!("group of snapshots {}", shown(handle)),
            source => format!("volume {}", shown(source.and_then(Source::first_volume).unwrap_or_default())),
        }
    }

    /// The node of the first volume, also where others are elsewhere: somebody has to say so.
    async fn is_here(&self, context: &Context) -> Result<bool, Failure> {
        match self.source() {
            Some(Source::Existing(handle)) => {
                let Ok(group) = existing(handle) else { return Ok(false) };
                is_found(context.volumes.group(&group).await)
            }
            source => {
                let first = source.and_then(Source::first_volume);
                Ok(first.is_some_and(|first| is_volume_of_node(context, first)))
            }
        }
    }

    async fn check(&self, context: &Context) -> Result<(), Failure> {
        check_class::<VolumeGroupSnapshotClass>(context, self.class()).await?;
        let elsewhere = volumes(self).iter().find(|volume| !is_volume_of_node(context, volume));
        elsewhere.map_or(Ok(()), |volume| {
            let volume = shown(volume);
            Err(Failure::Refused(format!(
                "volume {volume} is not on node {}, which has the first: volumes on several nodes have no moment in common",
                context.agent.node.name
            )))
        })
    }

    async fn take(&self, context: &Context, name: &str) -> Result<Value, Failure> {
        let sources = volumes(self).iter().map(|volume| existing(volume));
        let sources: BTreeSet<VolumeId> = sources.collect::<Result<_, _>>()?;
        let (group, owner) = (identify_group(name)?.0, self.owner());
        let mut charges = Vec::new();
        for volume in &sources {
            let snapshot = snapshot_in(&group, volume)?;
            charges.extend(charge_snapshot(context, &owner.namespace, volume, &snapshot).await?);
        }
        let taken = context.volumes.create_group(&Vec::from_iter(sources), name).await;
        let snapshots = settle_snapshots(context, charges, taken.map(|taken| taken.snapshots)).await?;
        for taken in &snapshots {
            note_snapshot(context, TakenFor::Group(owner), taken).await;
        }
        context.capacity_changed.notify_one();
        Ok(status::ready_group(&Group { id: group, snapshots }, false))
    }

    async fn find(&self, context: &Context, handle: &str) -> Result<Value, Failure> {
        let group = context.volumes.group(&existing(handle)?).await?;
        let (named, found) = (named(self), ids(&group.snapshots));
        if named.as_ref().is_some_and(|named| *named != found) {
            return Err(mismatch(&group.id, &found));
        }
        Ok(status::ready_group(&group, named.is_some()))
    }

    async fn delete(&self, context: &Context, handle: &str) -> Result<(), Failure> {
        // An invalid id names no group.
        let Ok(group) = existing(handle) else { return Ok(()) };
        if let Some(other) = other_that_needs(context, self, &group) {
            return Err(Failure::NotYet(format!(
                "{other} names the same group of snapshots, {group}, or one of its snapshots: it will be deleted once no other object needs it; to keep it, set deletionPolicy of this object to Retain"
            )));
        }
        // Some may have been deleted before.
        let snapshots = context.volumes.snapshots_in(&group).await?;
        if named(self).is_some_and(|named| !ids(&snapshots).is_subset(&named)) {
            return Err(mismatch(&group, &ids(&snapshots)));
        }
        context.volumes.delete_group(&group).await?;
        snapshots.iter().for_each(|deleted| context.ledger.forget(&deleted.snapshot));
        Ok(())
    }

    fn status_when_deleted() -> Value {
        status::deleted_group()
    }
}

/// The volumes that a group is to be taken of; none if it exists already.
fn volumes(content: &VolumeGroupSnapshotContent) -> &[String] {
    &content.spec.source.volume_handles
}

/// The snapshots that somebody says a group has that exists already.
fn named(content: &VolumeGroupSnapshotContent) -> Option<BTreeSet<&str>> {
    let handles = content.spec.source.group_snapshot_handles.as_ref()?;
    Some(handles.volume_snapshot_handles.iter().map(String::as_str).collect())
}

fn ids(snapshots: &[Snapshot]) -> BTreeSet<&str> {
    snapshots.iter().map(|taken| taken.snapshot.as_str()).collect()
}

/// Whoever names other snapshots than a group has takes it for another.
fn mismatch(group: &VolumeId, found: &BTreeSet<&str>) -> Failure {
    let found: Vec<_> = found.iter().copied().collect();
    Failure::Refused(format!(
        "volumeSnapshotHandles are not those of group {group}, which has {}: name these, or set deletionPolicy to Retain to let the object go",
        found.join(", ")
    ))
}

/// Another object that names the same group, or one of its snapshots by itself, and is not about to go with it.
fn other_that_needs(context: &Context, content: &VolumeGroupSnapshotContent, group: &VolumeId) -> Option<String> {
    let of_group = |other: &VolumeGroupSnapshotContent| {
        other.object_uid() != content.object_uid()
            && !other.takes_along()
            && other.handle().as_deref() == Some(group.as_str())
    };
    let of_snapshot = |other: &VolumeSnapshotContent| {
        let named = other.handle().and_then(|handle| group_of(&handle.parse().ok()?));
        !other.is_of_group() && !other.takes_along() && named.as_ref() == Some(group)
    };
    let groups = context.stores.groups.all().find(of_group);
    let group_object = groups.map(|other| format!("VolumeGroupSnapshotContent {}", other.name_any()));
    group_object.or_else(|| {
        let snapshots = context.stores.contents.mentioning(group.as_str()).find(of_snapshot);
        snapshots.map(|other| format!("VolumeSnapshotContent {}", other.name_any()))
    })
}
