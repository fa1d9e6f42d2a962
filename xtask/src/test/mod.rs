//! What `cargo xtask test` runs, in which order, and with what result.

mod changed;
mod compared;
mod count;
mod failures;
mod fuzz;
mod miri;
mod mutants;
mod progress;
mod release;
mod report;
mod results;
mod schedule;
mod step;
mod suites;
mod transcript;
mod unit;

pub use self::changed::Touched;
pub use self::count::Count;
pub use self::fuzz::{SHELLS, fuzz};
pub use self::miri::miri;
pub use self::mutants::mutants;
pub use self::report::Report;
pub use self::schedule::{Schedule, check_source};
pub use self::step::Step;
pub use self::suites::{Suites, require_host};
