//! The log: structured, on standard error.

use std::io;
use std::str::FromStr;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::{EnvFilter, fmt};

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

/// The text names no format, or no level.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// Formats are `text` and `json`.
    #[error("log format {0:?}: text or json is wanted")]
    Format(String),
    /// Levels are those of tracing's filters.
    #[error("log level {0:?}: error, warn, info, debug or trace is wanted")]
    Level(String),
    /// It can be begun once.
    #[error("the log was begun already")]
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

/// Begins the log at `level`, which may also be a filter such as `warn,bulkhead_frontend=debug,h2=debug`. A level alone
/// concerns what Bulkhead itself has to say: libraries only warn.
///
/// # Errors
/// See [`TelemetryError`].
pub fn begin(format: LogFormat, level: &str) -> Result<(), TelemetryError> {
    let filter = match level.parse::<LevelFilter>() {
        Ok(own) => format!("{},bulkhead_frontend={own}", own.min(LevelFilter::WARN)),
        // Anything else is taken for a target's name, and would silence everything.
        Err(_) if !level.contains(['=', ',']) => return Err(TelemetryError::Level(level.to_owned())),
        Err(_) => level.to_owned(),
    };
    let filter = EnvFilter::try_new(filter).map_err(|_| TelemetryError::Level(level.to_owned()))?;
    let log = fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(false).try_init(),
        LogFormat::Json => log.json().flatten_event(true).with_current_span(false).try_init(),
    }
    .map_err(|_| TelemetryError::Begun)
}
