//! The suite: real processes on real pools, one test at a time.

mod cases;

use std::process::ExitCode;

fn main() -> ExitCode {
    bulkhead_tests::runner::main(cases::all())
}
