//! The tests, one theme a module.

use bulkhead_tests::case::Case;

mod controller;
mod controller_create;
mod expand;
mod identity;
mod node_block;
mod node_directory;
mod requests;
mod stats;
mod unpublish;

/// All of them.
pub fn all() -> Vec<Case> {
    [
        identity::cases(),
        controller::cases(),
        controller_create::cases(),
        node_directory::cases(),
        node_block::cases(),
        unpublish::cases(),
        expand::cases(),
        stats::cases(),
        requests::cases(),
    ]
    .concat()
}
