//! The CSIStorageCapacity objects of this node.

use std::collections::BTreeSet;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::api::{DeleteParams, ListParams, ObjectMeta};
use kube::{Api, ResourceExt};
use sha2::{Digest, Sha256};

use crate::kubernetes::api::failure::{Failure, ask};
use crate::kubernetes::context::Context;
use crate::kubernetes::objects::names::{DRIVER_LABEL, MANAGED_BY, MANAGED_BY_LABEL};
use crate::kubernetes::objects::quantity::quantity;
use crate::volumes::Capacity;

/// The object for volumes of `class` on this node, whose uid is `owner`.
pub fn describe(context: &Context, owner: Option<&str>, class: &str, room: Capacity) -> CSIStorageCapacity {
    let mut labels = context.place.segments();
    labels.insert(DRIVER_LABEL.to_owned(), context.driver.to_string());
    labels.insert(MANAGED_BY_LABEL.to_owned(), MANAGED_BY.to_owned());
    // An agent that restarts must not hide its node; one whose node is gone must not go on showing it.
    let owner = owner.map(|uid| OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: context.node.name.clone(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    });
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(object_name(context, class)),
            namespace: Some(context.namespace.clone()),
            labels: Some(labels),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        storage_class_name: class.to_owned(),
        node_topology: Some(LabelSelector { match_labels: Some(context.place.segments()), match_expressions: None }),
        capacity: Some(quantity(room.available)),
        maximum_volume_size: Some(quantity(room.largest_volume)),
    }
}

/// The same name each time, so that one request makes an object or changes it. It ends with the node's: no other node's
/// agent may take it.
pub fn object_name(context: &Context, class: &str) -> String {
    let digest = Sha256::digest(format!("{}\n{}\n{class}", context.driver, context.place.value()));
    let short: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("bulkhead-{short}.{}", context.place.value())
}

/// Removes objects of this node that belong to no class any more.
///
/// # Errors
/// When they cannot be listed, or one does not go.
pub async fn remove_stale(
    context: &Context,
    objects: &Api<CSIStorageCapacity>,
    classes: &BTreeSet<String>,
) -> Result<(), Failure> {
    let place = format!("{}={}", context.place.key(), context.place.value());
    let own = ListParams::default().labels(&format!("{MANAGED_BY_LABEL}={MANAGED_BY},{place}"));
    let here = Some(context.place.segments());
    for object in ask("listing CSIStorageCapacity objects", objects.list(&own)).await? {
        // Anybody can write a label; the topology is what counts.
        let is_own = object.node_topology.as_ref().is_some_and(|topology| topology.match_labels == here);
        let is_current = object_name(context, &object.storage_class_name) == object.name_any()
            && classes.contains(&object.storage_class_name);
        if is_own && !is_current {
            remove(objects, &object.name_any()).await?;
        }
    }
    Ok(())
}

/// Removes an object, if it is there.
///
/// # Errors
/// When it does not go.
pub async fn remove(objects: &Api<CSIStorageCapacity>, name: &str) -> Result<(), Failure> {
    match ask("deleting a CSIStorageCapacity", objects.delete(name, &DeleteParams::default())).await {
        Ok(_) => Ok(()),
        Err(failure) if failure.is_not_found() => Ok(()),
        Err(failure) => Err(failure),
    }
}
