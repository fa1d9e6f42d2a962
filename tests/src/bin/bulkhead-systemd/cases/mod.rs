//! The tests, one theme per module.

use bulkhead_tests::case::Case;

use crate::node::Node;

mod devices;
mod disks;
mod reboot;
mod services;
mod tenant;
mod volumes;

/// All of them.
pub fn all() -> Vec<Case<Node>> {
    [services::cases(), volumes::cases(), devices::cases(), disks::cases(), tenant::cases(), reboot::cases()].concat()
}
