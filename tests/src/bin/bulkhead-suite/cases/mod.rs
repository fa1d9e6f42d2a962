//! The tests, one theme per module.

use bulkhead_tests::case::Case;

mod allocation;
mod attacks;
mod bad_input;
mod bulkheadctl;
mod controller;
mod controller_create;
mod copies;
mod deletion;
mod durability;
mod expand;
mod faults;
mod filesystems;
mod foreign;
mod frontend;
mod identity;
mod kubelet_record;
mod limits;
mod logs;
mod many;
mod model;
mod modify;
mod neighbour;
mod node_block;
mod node_directory;
mod owner;
mod power_cuts;
mod prepare;
mod promised;
mod protocol;
mod reboot;
mod recovery;
mod registration;
mod requests;
mod requota;
mod siege;
mod snapshots;
mod startup;
mod stats;
mod storm;
mod unpublish;
mod unused;
mod upgrades;
mod versions;

/// All of them.
pub fn all() -> Vec<Case> {
    [
        attacks::cases(),
        siege::cases(),
        copies::cases(),
        snapshots::cases(),
        filesystems::cases(),
        foreign::cases(),
        storm::cases(),
        identity::cases(),
        controller::cases(),
        controller_create::cases(),
        node_directory::cases(),
        node_block::cases(),
        unpublish::cases(),
        expand::cases(),
        stats::cases(),
        frontend::cases(),
        registration::cases(),
        requests::cases(),
        requota::cases(),
        bad_input::cases(),
        bulkheadctl::cases(),
        kubelet_record::cases(),
        startup::cases(),
        owner::cases(),
        versions::cases(),
        upgrades::cases(),
        promised::cases(),
        protocol::cases(),
        recovery::cases(),
        faults::cases(),
        deletion::cases(),
        durability::cases(),
        unused::cases(),
        many::cases(),
        model::cases(),
        modify::cases(),
        neighbour::cases(),
        allocation::cases(),
        limits::cases(),
        logs::cases(),
        reboot::cases(),
        power_cuts::cases(),
        prepare::cases(),
        prepare::recipes::cases(),
    ]
    .concat()
}
