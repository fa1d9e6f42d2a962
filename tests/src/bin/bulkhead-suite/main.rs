//! The suite: real processes on real pools, one test at a time.

mod cases;

use std::process::ExitCode;

use bulkhead_tests::runner::{self, Verbosity};

fn main() -> ExitCode {
    runner::main(cases::all(), Verbosity::Lines)
}
