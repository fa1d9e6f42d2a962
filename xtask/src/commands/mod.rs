//! The commands of `cargo xtask` that do more than one thing, one file each.

pub mod bench;
pub mod demo;
pub mod lint;
pub mod node;
pub mod release;
pub mod test;
pub mod vm;

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

/// The exit code that a shell would report for a command with this status.
fn exit_code(status: ExitStatus) -> ExitCode {
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(number).unwrap_or(1))
}
