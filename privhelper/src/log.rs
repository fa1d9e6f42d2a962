//! Log lines on standard error, with the priority prefix that journald reads (sd-daemon(3)).

use std::fmt::Arguments;
use std::io::Write as _;

/// How much a line matters, as in syslog(3).
#[derive(Clone, Copy, Debug)]
pub enum Level {
    /// Something is not served, or not as it should be.
    Error = 3,
    /// Something failed that is repeated, or that only its caller has to know.
    Warning = 4,
    /// All is as it should be.
    Info = 6,
}

/// Logs what is not served, or not as it should be: a sentence as for `format!`, then facts as `key=value`.
macro_rules! error {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Error, format_args!("bulkhead_privhelper: {}", format_args!($($line)*))) };
}

/// Logs what failed and is repeated, or what only its caller has to know.
macro_rules! warning {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Warning, format_args!("bulkhead_privhelper: {}", format_args!($($line)*))) };
}

/// Logs that all is as it should be.
macro_rules! info {
    ($($line:tt)*) => { $crate::log::write($crate::log::Level::Info, format_args!("bulkhead_privhelper: {}", format_args!($($line)*))) };
}

pub(crate) use {error, info, warning};

/// Writes one line, in one system call.
pub fn write(level: Level, line: Arguments<'_>) {
    let line = format!("<{}>{line}\n", level as u8);
    // Standard error is the only place that could say that standard error does not work.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
