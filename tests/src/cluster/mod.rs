//! A cluster for tests: a real control plane on this machine, nodes that are objects only, and real agents on them.

pub mod access;
pub mod agent;
pub mod component;
pub mod control_plane;
mod credentials;
pub mod manifests;
pub mod node;
pub mod objects;
mod scene;
mod watching;

pub use self::scene::{Cluster, PATIENCE};
