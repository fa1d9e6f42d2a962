//! The end of volumes: deletes those that were released, and those that no object refers to any more; and the census,
//! which finds those that are missing.

pub mod census;
mod names;
pub mod orphans;
pub mod owners;
pub mod reclaimer;
