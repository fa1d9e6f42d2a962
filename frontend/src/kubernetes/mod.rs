//! A node's storage agent: it turns claims into volumes, expands and deletes them, and tells the scheduler how much
//! capacity is left.
//!
//! There is no leader and no sidecar. Each agent acts on what concerns its own node, found by labels, and talks only to
//! the API server. A controller turns objects into a use case of [`crate::volumes`].
//!
//! From top to bottom, each importing only from those below it:
//!
//! - `agent`: the agent's life cycle
//! - `callers`: who asks about snapshots from outside the node, and what they may know of
//! - `view`: what others may ask of the agent
//! - `work`: what the agent does in a term
//! - `watches`: what it watches in a term
//! - `claims`: the controller of claims, and their watch
//! - `snapshots`: the controllers of VolumeSnapshotContents and VolumeGroupSnapshotContents, and their watch
//! - `holdings`: what namespaces have of the node, charged before anything is made
//! - `volumes`: the controller of PersistentVolumes, orphaned volumes, and missing ones
//! - `heartbeat`: the node's Lease, by which everybody sees whether the agent works
//! - `capacity`: the capacity published for the scheduler
//! - `health`: events about pools and volumes that need attention
//! - `renewal`: the token of an agent on a host, renewed by the agent itself
//! - `labels`: watching the objects that concern this node
//! - `term`: the tasks of one stretch of work, which end together
//! - `reconcile`: the loop that controllers run in; `agenda`: what it looks at next
//! - `policies`: whether the admission policies that confine the agent are in force
//! - `context`: the base that all of the above share
//! - `ledger`: the sums of that
//! - `intervals`: what the agent does by the clock
//! - `cordon`: the pools that take no new volumes
//! - `identity`: which cluster this is
//! - `memory`: what is remembered about objects; `known`: the objects that watches have shown
//! - `shares`: what waits, shared out by whose it is
//! - `api`: talking to the API server, whatever the subject

mod agenda;
mod agent;
mod api;
mod callers;
mod capacity;
mod claims;
mod condition_events;
mod confinement;
mod context;
mod cordon;
mod heartbeat;
mod holdings;
mod identity;
mod intervals;
mod known;
mod labels;
mod ledger;
mod memory;
mod persistent_volumes;
mod reconcile;
mod renewal;
mod shares;
mod snapshots;
mod term;
mod view;
mod watches;
mod work;

pub use agent::Agent;
pub use api::server::{ApiServer, ApiServerError};
pub use callers::{Callers, Located, Peer, Refusal};
pub use intervals::Intervals;
pub use ledger::{Ledger, Limits, NoShare, Share};
pub use view::{Connection, Owner, Ownership, View};
