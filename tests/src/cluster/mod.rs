//! A cluster for tests: a real control plane on this machine, nodes that exist only as objects, and real agents.

pub mod access;
pub mod agent;
pub mod audit;
pub mod changed_blocks;
pub mod component;
pub mod control_plane;
mod credentials;
mod fence;
mod fixture;
pub mod grant;
pub mod groups;
pub mod manifests;
pub mod network;
pub mod node;
pub mod objects;
pub mod prometheus;
mod room;
pub mod snapshots;
pub mod storm;
mod watching;

pub use self::control_plane::START;
pub use self::fixture::{Cluster, HURRIED, PATIENCE};
pub use self::room::bytes;
