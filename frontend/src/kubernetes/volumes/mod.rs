//! The end of volumes: deletes those that were released, and those to which no object refers any more.

pub mod orphans;
pub mod reclaimer;
