//! The capacity that agents publish for their nodes.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use kube::api::ListParams;

use super::fixture::{Cluster, PATIENCE};
use super::manifests::NAMESPACE;
use super::node::TOPOLOGY_KEY;

impl Cluster {
    /// Waits for the capacity object of a class on a node.
    pub fn capacity(&self, class: &str, node: &str) -> Result<CSIStorageCapacity> {
        let objects: Api<CSIStorageCapacity> = Api::namespaced(self.access.client(), NAMESPACE);
        let of_node = ListParams::default().labels(&format!("{TOPOLOGY_KEY}={node}"));
        self.access.wait(PATIENCE, &format!("the capacity of {class} on {node}"), || {
            let mut found = self.access.run(objects.list(&of_node))?.items;
            found.retain(|object| object.storage_class_name == class);
            ensure!(found.len() == 1, "there are {} objects", found.len());
            found.pop().context("one")
        })
    }

    /// The available space for volumes of a class on a node.
    pub fn room(&self, class: &str, node: &str) -> Result<u64> {
        let capacity = self.capacity(class, node)?.capacity.context("an object without a capacity")?;
        bytes(&capacity.0)
    }

    /// Waits until the published space is less than `limit`.
    pub fn capacity_below(&self, class: &str, node: &str, limit: u64) -> Result<()> {
        self.access.wait(PATIENCE, &format!("the room on {node} to fall below {limit}"), || {
            let room = self.room(class, node)?;
            ensure!(room < limit, "it is {room}");
            Ok(())
        })
    }
}

/// The value of a quantity as agents write it: a whole number, optionally with a binary suffix.
pub fn bytes(quantity: &str) -> Result<u64> {
    let digits = quantity.trim_end_matches(|character: char| !character.is_ascii_digit());
    let suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let step = suffixes.iter().position(|suffix| *suffix == &quantity[digits.len()..]);
    let step = step.with_context(|| format!("{quantity:?} is not a size"))?;
    Ok(digits.parse::<u64>().with_context(|| format!("{quantity:?} is not a size"))? << (10 * step))
}
