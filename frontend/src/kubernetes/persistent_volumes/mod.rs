//! The end of volumes: deletes those that were released, and those that no object refers to any more; the census, which
//! finds those that are missing; and what else an agent knows by its PersistentVolumes: whose volumes are, and which
//! claims are its own.

mod bound_claims;
pub mod census;
mod names;
pub mod orphans;
pub mod owners;
pub mod reclaimer;
