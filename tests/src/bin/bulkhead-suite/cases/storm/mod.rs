//! A storm: disks that freeze, fill, die and are exchanged, and tenants who take what is not theirs, while the helper is
//! killed and started again.

use bulkhead_tests::case::Case;

mod copies;
mod emptier;
mod frozen;
mod unsynced;

/// All of them.
pub fn cases() -> Vec<Case> {
    [
        copies::cases(),
        emptier::cases(),
        frozen::cases(),
        unsynced::cases(),
    ]
    .concat()
}
