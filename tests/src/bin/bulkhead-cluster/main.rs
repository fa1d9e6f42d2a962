//! The suite for the storage agent: real agents on a real control plane, each test in its own namespace.

mod cases;

use std::process::ExitCode;

use bulkhead_tests::runner::{self, Verbosity};

fn main() -> ExitCode {
    runner::main(cases::all(), Verbosity::Lines)
}
