//! The tests, one theme a module.

use bulkhead_tests::case::Case;
use bulkhead_tests::cluster::Cluster;

mod provision;

/// All of them.
pub fn all() -> Vec<Case<Cluster>> {
    [provision::cases()].concat()
}
