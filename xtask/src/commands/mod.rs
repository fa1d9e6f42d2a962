//! The commands of `cargo xtask`, one file each.

mod audit;
mod bench;
mod demo;
mod image;
mod lint;
mod node;
mod release;
mod templates;
mod test;
mod vm;

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

pub use self::audit::{AuditArguments, audit};
pub use self::bench::{BenchArguments, bench};
pub use self::demo::{DemoArguments, demo};
pub use self::image::{ImageArguments, image};
pub use self::lint::{LintArguments, lint};
pub use self::node::{NodeArguments, node};
pub use self::release::{ReleaseArguments, release};
pub use self::templates::{TemplatesArguments, templates};
pub use self::test::{TestArguments, test};
pub use self::vm::{VmArguments, vm};

/// The exit code that a shell would report for a command with this status.
fn exit_code(status: ExitStatus) -> ExitCode {
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(number).unwrap_or(1))
}
