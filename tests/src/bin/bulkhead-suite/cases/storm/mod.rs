//! A storm: disks that freeze, fill, die and are exchanged, and tenants who take what is not theirs, while the helper is
//! killed and started again.

use bulkhead_tests::case::Case;

mod copies;
mod durable;
mod emptier;
mod frozen;
mod oddities;
mod room;
mod unsynced;

/// All of them.
pub fn cases() -> Vec<Case> {
    [
        copies::cases(),
        durable::cases(),
        emptier::cases(),
        frozen::cases(),
        oddities::cases(),
        room::cases(),
        unsynced::cases(),
    ]
    .concat()
}
