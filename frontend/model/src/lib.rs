//! What the frontend and the commands for people have in common: the objects, figures and words in which they speak of
//! volumes. Nothing here asks anybody, or uses what only Linux has.
//!
//! From top to bottom, each importing only from those below it: [`policies`], [`objects`], [`volumes`]; then what stands
//! alone: [`exported`] and [`owner`], [`findings`], [`check`], [`exposition`], [`reading`], [`api_error`], [`quantity`],
//! [`printable`].

pub mod api_error;
pub mod check;
pub mod exported;
pub mod exposition;
pub mod findings;
pub mod objects;
pub mod owner;
pub mod policies;
pub mod printable;
pub mod quantity;
pub mod reading;
pub mod volumes;
