//! From claims to volumes: watching claims, making volumes for them, and growing these.

pub mod immediate_binding;
pub mod node_selection;
pub mod provisioner;
pub mod request;
pub mod resize_status;
pub mod resizer;
pub mod watch;
