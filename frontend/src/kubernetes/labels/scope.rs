//! Whose objects are watched.

use bulkhead_model::volumes::Place;

use crate::kubernetes::intervals::Intervals;

/// A driver and a node, and how often it is looked how its objects can be watched.
#[derive(Clone)]
pub struct Scope {
    /// The driver's name.
    pub driver: String,
    /// The node's name.
    pub node: String,
    /// The node as a label.
    pub place: Place,
    /// The agent's intervals.
    pub intervals: Intervals,
}
