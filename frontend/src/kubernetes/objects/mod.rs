//! The API's objects: what they say, and what ours look like.

pub mod claim;
pub mod names;
pub mod persistent_volume;
pub mod quantity;
