//! One thin file for each kernel interface. All of Bulkhead's `unsafe` code is here, one call per block.
//!
//! These functions decide nothing: they take what the layers above have checked and return what the kernel said.

pub mod capability;
pub mod clock;
mod error;
pub mod extents;
pub mod file;
pub mod landlock;
pub mod loopcontrol;
pub mod loopdevice;
pub mod mount;
pub mod mountinfo;
pub mod namespace;
pub mod packet;
pub mod process;
pub mod quota;
pub mod quotastate;
pub mod random;
pub mod socket;
pub mod thread;
pub mod walk;
pub mod xflags;
pub mod xfs;

pub use error::{Called, Error, Result, failed_with, unless, with_patience};
use error::{checked, value};
pub use rustix::io::Errno;
