//! Whose objects are watched.

use bulkhead_model::volumes::Place;

/// A driver and a node.
#[derive(Clone)]
pub struct Scope {
    /// The driver's name.
    pub driver: String,
    /// The node's name.
    pub node: String,
    /// The node as a label.
    pub place: Place,
}
