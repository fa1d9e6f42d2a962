//! The end of volumes: deleting what was released, and what was forgotten.

pub mod orphans;
pub mod reclaimer;
