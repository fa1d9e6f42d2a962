//! Messages for the person at the terminal. They go to standard error, so that they do not mix with the output of a
//! command run in the machine.

use std::cell::Cell;
use std::fmt::Display;
use std::time::Instant;

use anyhow::Result;

thread_local! {
    /// What this thread is working on, while other threads work on something else.
    static TOPIC: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Prefixes every further message of this thread with the topic.
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

/// Does the work, with one message before it, and another after it with the time it took.
pub fn timed<T>(what: impl Display, work: impl FnOnce() -> Result<T>) -> Result<T> {
    say(format_args!("{what} …"));
    let start = Instant::now();
    let result = work()?;
    say(format_args!("{what}: {:.1} s", start.elapsed().as_secs_f64()));
    Ok(result)
}
