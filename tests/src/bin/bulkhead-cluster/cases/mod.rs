//! The tests, one theme per module.

use bulkhead_tests::case::Case;
use bulkhead_tests::cluster::Cluster;

mod adopt;
mod attributes;
mod bundle;
mod capacity;
mod census;
mod chart;
mod cordon;
mod fallback;
mod filesystems;
mod healing;
mod immediate;
mod interrupted;
mod late;
mod manifests;
mod monitoring;
mod namespaces;
mod no_room;
mod nodes;
mod operator;
mod plugin;
mod provision;
mod reclaim;
mod refuse;
mod renewal;
mod requests;
mod resize;
mod restored;
mod rights;
mod snapshots;
mod storm;
mod token;
mod ui;

/// All of them, in the order in which they start. Those that take longest come first, so that none of them is left
/// running alone at the end. The tests of rights start no agent, so they need not wait until agents rely on the
/// policies.
pub fn all() -> Vec<Case<Cluster>> {
    [
        token::cases(),
        storm::cases(),
        rights::cases(),
        interrupted::cases(),
        late::cases(),
        cordon::cases(),
        restored::cases(),
        adopt::cases(),
        census::cases(),
        healing::cases(),
        nodes::cases(),
        operator::cases(),
        plugin::cases(),
        ui::cases(),
        bundle::cases(),
        requests::cases(),
        monitoring::cases(),
        namespaces::cases(),
        capacity::cases(),
        attributes::cases(),
        resize::cases(),
        filesystems::cases(),
        no_room::cases(),
        reclaim::cases(),
        snapshots::cases(),
        provision::cases(),
        immediate::cases(),
        refuse::cases(),
        renewal::cases(),
        manifests::cases(),
        chart::cases(),
        fallback::cases(),
    ]
    .concat()
}
