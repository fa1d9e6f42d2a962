//! Attacks on the boundary, each named after what the attacker does.

use bulkhead_tests::case::Case;

mod connections;
mod dead_disk;
mod devices;
mod emptying;
pub mod frozen;
mod frozen_pool;
mod full_pool;
mod hanging_pool;
mod hidden_mounts;
mod log;
mod numbers;
mod ready_devices;
mod second_start;
mod shutdown;
mod sick_disk;
mod space;
mod taken_keeper;
mod taken_over;
mod targets;

/// All of them.
pub fn cases() -> Vec<Case> {
    [
        connections::cases(),
        dead_disk::cases(),
        devices::cases(),
        emptying::cases(),
        frozen_pool::cases(),
        full_pool::cases(),
        hanging_pool::cases(),
        hidden_mounts::cases(),
        log::cases(),
        numbers::cases(),
        ready_devices::cases(),
        second_start::cases(),
        shutdown::cases(),
        sick_disk::cases(),
        space::cases(),
        taken_keeper::cases(),
        taken_over::cases(),
        targets::cases(),
    ]
    .concat()
}
