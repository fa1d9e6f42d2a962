//! Messages for the person at the terminal. They go to standard error, so that the output of a command run in the
//! machine stays clean.

use std::cell::Cell;
use std::fmt::Display;
use std::time::Instant;

use anyhow::Result;

thread_local! {
    /// What this thread works on, when other threads work on something else.
    static TOPIC: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Puts the topic before every message of this thread from now on.
pub fn set_topic(topic: &'static str) {
    TOPIC.set(Some(topic));
}

/// Prints a message.
pub fn say(what: impl Display) {
    match TOPIC.get() {
        Some(topic) => eprintln!("xtask: {topic}: {what}"),
        None => eprintln!("xtask: {what}"),
    }
}

/// Does the work, with a message before it, and one after it with the time it took.
pub fn timed<T>(what: impl Display, work: impl FnOnce() -> Result<T>) -> Result<T> {
    say(format_args!("{what} …"));
    let start = Instant::now();
    let result = work()?;
    say(format_args!("{what}: {:.1} s", start.elapsed().as_secs_f64()));
    Ok(result)
}
