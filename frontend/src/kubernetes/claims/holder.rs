//! Which node has what a claim's volume is to begin as a copy of. A copy is where its source is.

use bulkhead_model::objects::content::Content;
use bulkhead_model::objects::names::is_object_name;
use bulkhead_model::objects::persistent_volume;
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use bulkhead_model::objects::volume_snapshot::VolumeSnapshot;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSINode;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, ResourceExt};

use super::source::{Source, bound_volume, check_claim, check_snapshot, source};
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;
use crate::kubernetes::context::{AgentIdentity, Context};
use crate::kubernetes::snapshots::bound::bound_content;
use crate::volumes::{self, existing};

/// Where a claim's source is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// On this node, as its helper knows it.
    Here(volumes::Source),
    /// On another node.
    Elsewhere(String),
}

/// Returns whether this node has the source of `claim`, as far as it knows without asking anybody. Only one node finds
/// that it has.
pub fn is_here(context: &Context, claim: &PersistentVolumeClaim) -> bool {
    let Context { agent: AgentIdentity { driver, place, .. }, stores, .. } = context;
    let namespace = claim.namespace();
    match source(claim) {
        Ok(Some(Source::Snapshot(name))) => stores.contents.mentioning(name).any(|content| {
            let bound = &content.spec.volume_snapshot_ref;
            content.node(place) == Some(place.value())
                && content.is_ready()
                && !content.is_being_deleted()
                && (Some(&bound.namespace), bound.name.as_str()) == (namespace.as_ref(), name)
        }),
        Ok(Some(Source::Claim(name))) => stores.persistent_volumes.mentioning(name).any(|object| {
            let is_its_claim = |bound: ObjectRef<PersistentVolumeClaim>| {
                (bound.namespace.as_ref(), bound.name.as_str()) == (namespace.as_ref(), name)
            };
            persistent_volume::phase(&object) == "Bound"
                && persistent_volume::claim_reference(&object).is_some_and(is_its_claim)
                && persistent_volume::own_volume(&object, driver, place).is_some()
        }),
        Ok(None) | Err(_) => false,
    }
}

/// Returns where the source of `claim` is, if it has one and can begin as a copy of it.
///
/// # Errors
/// When it cannot, or not yet; the message is for the claim's owner.
pub async fn find(context: &Context, claim: &PersistentVolumeClaim) -> Result<Option<Holder>, Failure> {
    match source(claim)? {
        None => Ok(None),
        Some(Source::Snapshot(name)) => of_snapshot(context, claim, name).await.map(Some),
        Some(Source::Claim(name)) => of_claim(context, claim, name).await.map(Some),
    }
}

async fn of_snapshot(context: &Context, claim: &PersistentVolumeClaim, name: &str) -> Result<Holder, Failure> {
    let snapshots: Api<VolumeSnapshot> =
        Api::namespaced(context.client.clone(), &claim.namespace().unwrap_or_default());
    let found = request("reading a VolumeSnapshot", snapshots.get_opt(name)).await?;
    let snapshot = found.ok_or_else(|| missing(Source::Snapshot(name)))?;
    let contents: Api<VolumeSnapshotContent> = Api::all(context.client.clone());
    let found = request("reading a VolumeSnapshotContent", contents.get_opt(bound_content(&snapshot)?)).await?;
    let content = found.ok_or_else(|| missing(Source::Snapshot(name)))?;
    check_snapshot(claim, &snapshot, &content, &context.agent.driver)?;
    match content.node(&context.agent.place) {
        Some(node) if node == context.agent.place.value() => {
            let id = existing(content.handle().as_deref().unwrap_or_default())?;
            Ok(Holder::Here(volumes::Source::Snapshot(id)))
        }
        Some(node) => Ok(Holder::Elsewhere(node.to_owned())),
        None => Err(nowhere(Source::Snapshot(name))),
    }
}

async fn of_claim(context: &Context, claim: &PersistentVolumeClaim, name: &str) -> Result<Holder, Failure> {
    let found = request("reading a claim", context.claims_beside(claim).get_opt(name)).await?;
    let source = found.ok_or_else(|| missing(Source::Claim(name)))?;
    let object = volume_of(context, &source).await?.ok_or_else(|| missing(Source::Claim(name)))?;
    check_claim(claim, &source, &object, &context.agent.driver)?;
    if let Some(volume) = persistent_volume::own_volume(&object, &context.agent.driver, &context.agent.place) {
        return Ok(Holder::Here(volumes::Source::Volume(volume)));
    }
    let node = persistent_volume::nodes(&object, &context.agent.place).next().map(str::to_owned);
    node.map(Holder::Elsewhere).ok_or_else(|| nowhere(Source::Claim(name)))
}

async fn volume_of(context: &Context, source: &PersistentVolumeClaim) -> Result<Option<PersistentVolume>, Failure> {
    let name = bound_volume(source)?;
    request("reading a PersistentVolume", context.persistent_volumes().get_opt(name)).await
}

/// Checks that the node called `node`, which has the source of `claim`, can be given the claim.
///
/// # Errors
/// When it is no part of the cluster any more.
pub async fn check_node(context: &Context, claim: &PersistentVolumeClaim, node: &str) -> Result<(), Failure> {
    let nodes: Api<CSINode> = Api::all(context.client.clone());
    // It exists exactly as long as the Node object does.
    if is_object_name(node) && request("reading a CSINode", nodes.get_opt(node)).await?.is_some() {
        return Ok(());
    }
    let source = source(claim)?.map(|source| source.shown()).unwrap_or_default();
    Err(Failure::NotYet(format!("{source} is on node {node}, which is no longer part of the cluster")))
}

fn missing(source: Source<'_>) -> Failure {
    Failure::NotYet(format!("{}, which the claim is to begin as a copy of, does not exist", source.shown()))
}

fn nowhere(source: Source<'_>) -> Failure {
    Failure::NotYet(format!("{} is not on any node", source.shown()))
}
