//! The CSIStorageCapacity objects of this node, in the API.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use bulkhead_model::objects::names::{self, DRIVER_LABEL, MANAGED_BY, MANAGED_BY_LABEL};
use bulkhead_model::objects::storage;
use bulkhead_model::quantity::parse;
use futures::TryStreamExt;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams};
use kube::{Api, ResourceExt};
use sha2::{Digest, Sha256};

use super::estimate::Estimate;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::node_identity::owner;
use crate::kubernetes::api::pages::list;
use crate::kubernetes::api::request::{request, unless_gone};
use crate::kubernetes::context::Context;

/// Creates or replaces the object for `class`. It belongs to the node whose uid is `owner`.
///
/// # Errors
/// When the API server does not accept it.
pub async fn write(context: &Context, owner: Option<&str>, class: &str, estimate: &Estimate) -> Result<(), Failure> {
    let object = describe(context, owner, class, estimate);
    let parameters = PatchParams::apply(context.agent.driver.as_str()).force();
    let patch = Patch::Apply(&object);
    request("writing a CSIStorageCapacity", api(context).patch(&object.name_any(), &parameters, &patch)).await?;
    Ok(())
}

/// What a node has reported for a class.
#[derive(Clone, Debug)]
pub struct NodeCapacity {
    /// The node, as in the topology.
    pub node: String,
    /// The space for new volumes, in bytes.
    pub available: u64,
    /// The largest volume that can be made, in bytes.
    pub largest_volume: u64,
    /// Whether it can make no volume of the class, however much room there is.
    pub is_obstructed: bool,
}

/// Returns what all nodes have reported, this one included, class by class.
///
/// # Errors
/// When it cannot be listed.
pub async fn list_all(context: &Context) -> Result<BTreeMap<String, Vec<NodeCapacity>>, Failure> {
    let labels = format!("{MANAGED_BY_LABEL}={MANAGED_BY},{DRIVER_LABEL}={}", context.agent.driver);
    let mut objects = pin!(list("listing CSIStorageCapacity objects", api(context), Some(&labels)));
    let mut found = BTreeMap::<_, Vec<_>>::new();
    let obstacle = names::obstacle(&context.agent.driver);
    while let Some(object) = objects.try_next().await? {
        let is_obstructed = object.annotations().contains_key(&obstacle);
        let segments = object.node_topology.and_then(|topology| topology.match_labels);
        let Some(node) = segments.and_then(|mut segments| segments.remove(context.agent.place.key())) else { continue };
        let bytes = |quantity: Option<Quantity>| quantity.and_then(|quantity| parse(&quantity.0)).unwrap_or_default();
        let (available, largest_volume) = (bytes(object.capacity), bytes(object.maximum_volume_size));
        found.entry(object.storage_class_name).or_default().push(NodeCapacity {
            node,
            available,
            largest_volume,
            is_obstructed,
        });
    }
    Ok(found)
}

/// Deletes the object for `class`, if it exists.
///
/// # Errors
/// When it cannot be deleted.
pub async fn delete(context: &Context, class: &str) -> Result<(), Failure> {
    delete_named(context, &object_name(context, class)).await
}

/// Deletes the objects of this node that are for none of `classes`.
///
/// # Errors
/// When they cannot be listed, or one cannot be deleted.
pub async fn delete_stale(context: &Context, classes: &BTreeSet<String>) -> Result<(), Failure> {
    let labels = format!("{MANAGED_BY_LABEL}={MANAGED_BY},{}", context.agent.place);
    let here = Some(context.agent.place.segments());
    let mut objects = pin!(list("listing CSIStorageCapacity objects", api(context), Some(&labels)));
    while let Some(object) = objects.try_next().await? {
        // Anybody can write a label; the topology is what counts.
        let is_own = object.node_topology.as_ref().is_some_and(|topology| topology.match_labels == here);
        let is_current = object_name(context, &object.storage_class_name) == object.name_any()
            && classes.contains(&object.storage_class_name);
        if is_own && !is_current {
            delete_named(context, &object.name_any()).await?;
        }
    }
    Ok(())
}

async fn delete_named(context: &Context, name: &str) -> Result<(), Failure> {
    let parameters = DeleteParams::default();
    unless_gone(request("deleting a CSIStorageCapacity", api(context).delete(name, &parameters)).await)
}

fn api(context: &Context) -> Api<CSIStorageCapacity> {
    Api::namespaced(context.client.clone(), &context.agent.namespace)
}

fn describe(context: &Context, owner_uid: Option<&str>, class: &str, estimate: &Estimate) -> CSIStorageCapacity {
    let Estimate { capacity, obstacle } = estimate;
    let mut labels = context.agent.place.segments();
    labels.insert(DRIVER_LABEL.to_owned(), context.agent.driver.to_string());
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned());
    // The object must outlive the agent, whose restart must not hide the node, but it must not outlive the node.
    let owner = owner_uid.map(|uid| owner(&context.agent.node.name, uid));
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(object_name(context, class)),
            namespace: Some(context.agent.namespace.clone()),
            labels: Some(labels),
            annotations: obstacle.clone().map(|why| BTreeMap::from([(names::obstacle(&context.agent.driver), why)])),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        storage_class_name: class.to_owned(),
        node_topology: Some(LabelSelector {
            match_labels: Some(context.agent.place.segments()),
            match_expressions: None,
        }),
        capacity: Some(storage::quantity(capacity.available)),
        maximum_volume_size: Some(storage::quantity(capacity.largest_volume)),
    }
}

/// The object's name, which is equal each time, so that a single request creates the object or changes it. It ends with
/// the node's name: no other node's agent may use it.
fn object_name(context: &Context, class: &str) -> String {
    let digest = Sha256::digest(format!("{}\n{}\n{class}", context.agent.driver, context.agent.place.value()));
    let short: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("bulkhead-{short}.{}", context.agent.place.value())
}
