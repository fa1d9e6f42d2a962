//! A cluster for tests: a real control plane on this machine, nodes that are objects only, and real agents on them.

pub mod access;
pub mod component;
pub mod control_plane;
mod credentials;
