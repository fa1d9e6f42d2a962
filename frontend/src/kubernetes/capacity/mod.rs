//! Telling the scheduler how much capacity the node has: one CSIStorageCapacity object for each of our storage classes.
//!
//! From top to bottom, each importing only from those below it: [`schedule`] decides when to publish, [`publisher`]
//! what, [`published`] knows what the API has, [`object`] writes it; [`estimate`] computes how much there is, and
//! [`turns`] lets only one task at a time do that for a class.

mod estimate;
pub mod object;
mod published;
pub mod publisher;
pub mod schedule;
mod turns;
