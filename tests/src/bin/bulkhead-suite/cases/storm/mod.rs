//! A storm: disks that freeze, fill, die and are exchanged, and tenants who take what is not theirs, while the helper is
//! killed and started again.

use bulkhead_tests::case::Case;

mod copies;
mod durable;
mod dying;
mod emptier;
mod frozen;
mod full;
mod oddities;
mod room;
mod trees;
mod unsynced;

/// All of them.
pub fn cases() -> Vec<Case> {
    [
        copies::cases(),
        durable::cases(),
        dying::cases(),
        emptier::cases(),
        frozen::cases(),
        full::cases(),
        oddities::cases(),
        room::cases(),
        trees::cases(),
        unsynced::cases(),
    ]
    .concat()
}
