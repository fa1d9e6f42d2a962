//! What the person at the terminal is told. Everything goes to standard error, so that the output of a command run in
//! the machine stays clean.

use std::fmt::Display;
use std::time::Instant;

use anyhow::Result;

/// Says what is being done.
pub fn say(what: impl Display) {
    eprintln!("xtask: {what}");
}

/// Says what is being done, does it, and says how long it took.
pub fn timed<T>(what: impl Display, work: impl FnOnce() -> Result<T>) -> Result<T> {
    say(format_args!("{what} …"));
    let start = Instant::now();
    let result = work()?;
    say(format_args!("{what}: {:.1} s", start.elapsed().as_secs_f64()));
    Ok(result)
}
