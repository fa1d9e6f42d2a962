//! From claims to volumes: watching claims, making volumes for them, and expanding those volumes.
//!
//! From top to bottom, each importing only from those below it:
//!
//! - [`controller`]: what a claim needs, whatever state it is in
//! - [`provisioner`]: makes its volume; [`immediate_binding`] if any node may, in [`bid_order`]; [`decision`] and
//!   [`requested_volume`] are the pure parts, and [`node_selection`] the write that gives a claim to a node or back to
//!   the scheduler
//! - [`resizer`]: expands its volume; [`resize_target`] and [`resize_status`] are the pure parts
//! - [`watch`]: the claims that concern this node, which [`scope`] defines, and those that are [`unlabelled`]

mod bid_order;
pub mod controller;
mod decision;
#[cfg(test)]
mod fixtures;
mod immediate_binding;
mod node_selection;
mod provisioner;
mod requested_volume;
mod resize_status;
mod resize_target;
mod resizer;
pub mod scope;
mod unlabelled;
mod watch;
