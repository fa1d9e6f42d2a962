//! The tests, one theme a module.

use bulkhead_tests::case::Case;

mod requests;

/// All of them.
pub fn all() -> Vec<Case> {
    [requests::cases()].concat()
}
