//! From claims to volumes: watching claims, making volumes for them, and expanding those volumes.
//!
//! From top to bottom, each importing only from those below it:
//!
//! - [`controller`]: what a claim needs, whatever state it is in
//! - [`provisioner`]: makes its volume; [`immediate_binding`] if any node may, in [`bid_order`] and each in its [`bid_turn`]; [`placement`] and
//!   [`holder`] if it begins as a copy, which has to be where its source is; [`decision`], [`requested_volume`] and
//!   [`source`] are the pure parts, and [`node_selection`] the write that gives a claim to a node or back to the scheduler
//! - [`resizer`]: expands its volume; [`resize_target`] and [`resize_status`] are the pure parts
//! - [`modifier`]: changes the attributes of its volume; [`modify_status`] is the pure part
//! - [`attributes`]: which attributes a claim asks for; [`bound`]: which volume it has, and what is written about it;
//!   [`conditions`]: a part of that
//! - [`unservable`]: tells of claims whose class no node can serve
//! - [`watch`]: the claims that concern this node, which `scope` defines, and those that are [`unlabelled`]

mod attributes;
mod bid_order;
mod bid_turn;
mod bound;
mod conditions;
pub mod controller;
mod decision;
#[cfg(test)]
pub mod fixtures;
mod holder;
mod immediate_binding;
mod modifier;
mod modify_status;
mod node_selection;
mod placement;
mod provisioner;
mod requested_volume;
mod resize_status;
mod resize_target;
mod resizer;
mod scope;
mod source;
mod unlabelled;
pub mod unservable;
mod watch;
