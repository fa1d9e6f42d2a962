//! The log: structured, on standard error.

mod line;
mod queue;

use std::io;
use std::str::FromStr;

use tracing::error;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{EnvFilter, fmt};

pub use queue::Queue;

/// Format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object per line.
    Json,
}

/// The log cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Formats are `text` and `json`.
    #[error("invalid log format {0:?}: give text or json")]
    Format(String),
    /// Levels are those of tracing's filters.
    #[error("invalid log level {0:?}: give --log-level error, warn, info, debug or trace")]
    Level(String),
    /// The thread that writes it cannot be started.
    #[error("cannot start the log's thread: {0}")]
    Thread(#[from] io::Error),
    /// It can be started only once.
    #[error("the log has already been started")]
    Begun,
}

impl FromStr for LogFormat {
    type Err = TelemetryError;

    fn from_str(text: &str) -> Result<Self, TelemetryError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(TelemetryError::Format(other.to_owned())),
        }
    }
}

/// Starts the log at `level`, which may also be a filter such as `warn,bulkhead_frontend=debug,h2=debug`. A bare level
/// applies to Bulkhead itself; libraries log only warnings. Flush the queue that is returned before the process ends.
///
/// # Errors
/// See [`TelemetryError`].
pub fn begin(format: LogFormat, level: &str) -> Result<Queue, TelemetryError> {
    let filter = match level.parse::<LevelFilter>() {
        Ok(own) => format!("{},bulkhead_frontend={own}", own.min(LevelFilter::WARN)),
        // Any other word would be taken for a target's name and silence everything.
        Err(_) if !level.contains(['=', ',']) => return Err(TelemetryError::Level(level.to_owned())),
        Err(_) => level.to_owned(),
    };
    let filter = EnvFilter::try_new(filter).map_err(|_| TelemetryError::Level(level.to_owned()))?;
    let queue = Queue::new(format);
    queue.start()?;
    let writer = queue.clone();
    let log = fmt().with_env_filter(filter).with_writer(move || writer.clone());
    match format {
        // The journal has a time for each line.
        LogFormat::Text if is_journal() => log.with_ansi(false).without_time().try_init(),
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).try_init(),
    }
    .map_err(|_| TelemetryError::Begun)?;
    let last = queue.clone();
    // Otherwise Rust would write the message itself and block on its reader, and earlier lines would be lost.
    std::panic::set_hook(Box::new(move |panic| {
        error!("{panic}");
        last.flush();
    }));
    Ok(queue)
}

/// Returns whether standard error is the journal (systemd.exec(5)).
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    rustix::fs::fstat(io::stderr()).is_ok_and(|own| stream == format!("{}:{}", own.st_dev, own.st_ino))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// In a process of its own, which ends as a release build does.
    #[test]
    fn a_panic_is_logged_after_what_was_logged_before() {
        const OWN_PROCESS: &str = "BULKHEAD_TEST_PANIC";
        if std::env::var_os(OWN_PROCESS).is_some() {
            begin(LogFormat::Json, "info").unwrap();
            tracing::info!("a line");
            let _ = std::panic::catch_unwind(|| panic!("a bug"));
            std::process::abort();
        }
        let name = "telemetry::tests::a_panic_is_logged_after_what_was_logged_before";
        let mut process = Command::new(std::env::current_exe().unwrap());
        let output = process.args(["--exact", name]).env(OWN_PROCESS, "yes").output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        let (line, bug) = (log.find("a line"), log.find("a bug"));
        assert!(line.is_some() && bug > line, "{log}");
    }
}
