//! A node's storage agent: claims become volumes, volumes grow and go, and the scheduler learns what room there is.
//!
//! There is no leader and no sidecar. Each agent acts on what concerns its own node, found by labels, and talks to the
//! API server alone. One file a controller; each turns objects into a use case of [`crate::volumes`].

mod agent;
mod api;
mod capacity;
mod claims;
mod context;
mod objects;
mod reconcile;
mod volumes;

pub use agent::Agent;
pub use api::access::{Access, AccessError};
