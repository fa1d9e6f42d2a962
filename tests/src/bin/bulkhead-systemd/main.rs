//! Both programs as systemd services, with the files in `deploy/`: run it in a machine with systemd as PID 1.

mod cases;
mod container;
mod node;
mod unit;

use std::process::ExitCode;

use bulkhead_tests::runner::{self, Verbosity};

fn main() -> ExitCode {
    runner::main(cases::all(), Verbosity::Lines)
}
