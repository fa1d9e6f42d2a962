//! Telling the scheduler how much capacity the node has: one CSIStorageCapacity object for each of our storage classes.
//!
//! From top to bottom, each importing only from those below it: [`schedule`] decides when to report, [`reporter`]
//! what, [`written`] knows what the API has, [`csi_storage_capacity`] writes it; [`estimate`] computes how much there is, and
//! [`turns`] lets only one task at a time do that for a class.

pub mod csi_storage_capacity;
pub mod estimate;
pub mod reporter;
pub mod schedule;
mod turns;
mod written;
