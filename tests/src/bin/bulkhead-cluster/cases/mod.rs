//! The tests, one theme a module.

use bulkhead_tests::case::Case;
use bulkhead_tests::cluster::Cluster;

mod capacity;
mod fallback;
mod immediate;
mod interrupted;
mod no_room;
mod nodes;
mod provision;
mod reclaim;
mod refuse;
mod requests;
mod resize;
mod rights;
mod storm;

/// All of them.
pub fn all() -> Vec<Case<Cluster>> {
    [
        provision::cases(),
        refuse::cases(),
        immediate::cases(),
        no_room::cases(),
        capacity::cases(),
        resize::cases(),
        reclaim::cases(),
        nodes::cases(),
        requests::cases(),
        rights::cases(),
        interrupted::cases(),
        fallback::cases(),
        storm::cases(),
    ]
    .concat()
}
