//! A node's storage agent: claims become volumes, volumes grow and go, and the scheduler learns what room there is.
//!
//! There is no leader and no sidecar. Each agent acts on what concerns its own node, found by labels, and talks to the
//! API server alone. One file a controller; each turns objects into a use case of [`crate::volumes`].

mod access;
mod agent;
mod backoff;
mod capacity;
mod capacity_object;
mod claim;
mod claims;
mod contest;
mod context;
mod events;
mod failure;
mod identity;
mod names;
mod order;
mod provisioner;
mod quantity;
mod reclaimer;
mod reconcile;
mod resize_status;
mod resizer;
mod room;
mod selection;
mod settler;
mod throttle;
mod volume;
mod watch;

pub use access::{Access, AccessError};
pub use agent::Agent;
