//! The end of volumes: deletes those that were released, and those that no object refers to any more.

pub mod names;
pub mod orphans;
pub mod reclaimer;
