//! Attacks on the boundary, each named after what the attacker does.

use bulkhead_tests::case::Case;

mod log;

/// All of them.
pub fn cases() -> Vec<Case> {
    [log::cases()].concat()
}
