//! Telling the scheduler how much room there is.

pub mod estimate;
pub mod object;
pub mod publisher;
