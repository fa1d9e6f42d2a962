//! The end of volumes: deleting those that were released, and those that nobody knows any more.

pub mod orphans;
pub mod reclaimer;
