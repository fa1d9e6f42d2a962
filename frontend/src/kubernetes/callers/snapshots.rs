//! Where a snapshot is, and which earlier one it can be compared with.

use bulkhead_model::objects::content::Content;
use bulkhead_model::objects::names::{is_object_name, shown};
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::objects::volume_snapshot::VolumeSnapshot;
use bulkhead_protocol::{ErrorKind, Snapshot};
use kube::Api;

use super::{Callers, Refusal, unasked};
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;
use crate::kubernetes::context::Context;
use crate::kubernetes::snapshots::bound::{bound_content, check_bound};
use crate::volumes::existing;

/// Where a snapshot is.
pub enum Located {
    /// On this node.
    Here(Snapshot),
    /// On another one, with this label.
    Elsewhere(String),
}

impl Callers {
    /// Returns where the snapshot of this VolumeSnapshot is.
    ///
    /// # Errors
    /// When there is none, or none that can be used yet.
    pub async fn locate(&self, namespace: &str, name: &str) -> Result<Located, Refusal> {
        let Context { client, agent, volumes, .. } = &*self.0;
        let missing = || Refusal::Missing(format!("namespace {namespace} has no VolumeSnapshot {}", shown(name)));
        if !is_object_name(name) {
            return Err(missing());
        }
        let snapshots: Api<VolumeSnapshot> = Api::namespaced(client.clone(), namespace);
        let found = request("reading a VolumeSnapshot", snapshots.get_opt(name)).await.map_err(unasked)?;
        let snapshot = found.ok_or_else(missing)?;
        let contents: Api<VolumeSnapshotContent> = Api::all(client.clone());
        let bound = bound_content(&snapshot).map_err(not_usable)?;
        let found = request("reading a VolumeSnapshotContent", contents.get_opt(bound)).await.map_err(unasked)?;
        let content = found.ok_or_else(missing)?;
        check_bound(&snapshot, &content, &agent.driver).map_err(not_usable)?;
        match content.node(&agent.place) {
            Some(node) if node == agent.place.value() => {
                let id = existing(content.handle().as_deref().unwrap_or_default()).map_err(Refusal::Volume)?;
                Ok(Located::Here(volumes.snapshot(&id).await.map_err(Refusal::Volume)?))
            }
            Some(node) => Ok(Located::Elsewhere(node.to_owned())),
            None => Err(Refusal::NotNow(format!("VolumeSnapshot {name} is not on any node"))),
        }
    }

    /// The snapshot called `handle`, if it is an earlier one of the volume that `target` is of, and a VolumeSnapshot of
    /// `namespace` is bound to it. Whatever else has that name is none of the caller's concern.
    ///
    /// # Errors
    /// When it is not.
    pub async fn base(&self, handle: &str, namespace: &str, target: &Snapshot) -> Result<Snapshot, Refusal> {
        let Context { agent, volumes, stores, .. } = &*self.0;
        let none = || {
            Refusal::Missing(format!(
                "base_snapshot_id {} is of no VolumeSnapshot of the same volume in namespace {namespace}: keep the earlier one until then, or read the whole snapshot",
                shown(handle)
            ))
        };
        if !stores.lists.is_complete("volumesnapshotcontents") {
            return Err(Refusal::NotNow(
                "the node's storage agent has not listed the snapshots yet: try again".to_owned(),
            ));
        }
        let id = existing(handle).map_err(|_| none())?;
        let is_of_namespace = |content: VolumeSnapshotContent| {
            content.handle().as_deref() == Some(handle)
                && content.spec.driver == agent.driver.as_str()
                && content.spec.volume_snapshot_ref.namespace == namespace
                && content.owner_uid().is_some()
                && content.is_ready()
        };
        // Its namespace is in all of them.
        if !stores.contents.mentioning(namespace).any(is_of_namespace) {
            return Err(none());
        }
        match volumes.snapshot(&id).await {
            Ok(base) if base.origin.source == target.origin.source => Ok(base),
            Ok(_) => Err(none()),
            Err(fault) if fault.is(ErrorKind::NotFound) => Err(none()),
            Err(fault) => Err(Refusal::Volume(fault)),
        }
    }
}

fn not_usable(failure: Failure) -> Refusal {
    match failure {
        Failure::Refused(why) => Refusal::Foreign(why),
        failure => Refusal::NotNow(failure.to_string()),
    }
}
