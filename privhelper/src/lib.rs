//! The privileged half of Bulkhead. `main.rs` has the steps of its life in order, one call each; `SECURITY.md` says
//! why. What a part of it may break is decided by the process that runs it: `reading.txt` says which.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects, clippy::disallowed_macros, clippy::expect_used, clippy::indexing_slicing,
        clippy::panic, clippy::unreachable, clippy::unwrap_used
    )
)]

mod audit;
mod bookkeeping;
mod capabilities;
mod dispatch;
mod emptier;
mod errors;
mod mounter;
mod ops;
mod place;
pub mod server;
pub mod start;
mod state;
// The only place where `unsafe` is allowed.
#[allow(unsafe_code)]
mod sys;
pub mod threads;

pub use bookkeeping::{limits, log, watch};
pub use place::attributes;
pub use place::kind::Kind;
pub use place::{Shape, vol_data};
pub use state::{layout, may_be_looked_at};
pub use sys::{Called, Error as SysError, file, mountinfo, quota, quotastate, walk, xflags};
