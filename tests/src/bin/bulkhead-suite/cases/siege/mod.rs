//! A siege: what surrounds the helper changes in ways that nobody intends, and nothing wrong may come of it.

use bulkhead_tests::case::Case;

mod apart;
mod audit;
pub mod copies;
mod covered;
mod deep;
mod descriptors;
mod dying_disk;
mod exchanged;
mod flight;
mod forged;
mod full;
mod log;
mod nodes;
mod notes;
mod projects;
mod quotas;
mod records;
mod restored;
mod second_helper;
mod sharing;
mod sockets;
mod strange_files;
mod taken_out;
mod tenants;

/// All of them.
pub fn cases() -> Vec<Case> {
    [
        apart::cases(),
        audit::cases(),
        copies::cases(),
        covered::cases(),
        deep::cases(),
        descriptors::cases(),
        dying_disk::cases(),
        exchanged::cases(),
        flight::cases(),
        forged::cases(),
        full::cases(),
        log::cases(),
        nodes::cases(),
        notes::cases(),
        projects::cases(),
        quotas::cases(),
        records::cases(),
        restored::cases(),
        second_helper::cases(),
        sharing::cases(),
        sockets::cases(),
        strange_files::cases(),
        taken_out::cases(),
        tenants::cases(),
    ]
    .concat()
}
