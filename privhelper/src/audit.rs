//! Log lines on standard error, with the priority prefix that journald reads (sd-daemon(3)).
//!
//! Every privileged operation is one line of target `audit`: what, on which volume, at which target, for whom, how it
//! ended and how long it took. A subscriber of our own, since all that is needed is to write key=value pairs.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use bulkhead_protocol::{Error, Request, TargetPath, VolumeId};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};

struct Lines;

/// Makes log lines go to standard error.
pub fn install() {
    // It fails only if a subscriber is there already, and then there are log lines.
    let _ = tracing::subscriber::set_global_default(Lines);
}

/// One line for a request.
pub fn record(request: &Request, pid: i32, outcome: &Result<impl Sized, Error>, microseconds: u128) {
    let (operation, volume, target) = describe(request);
    let volume = volume.map_or("-", VolumeId::as_str);
    let target = target.map_or_else(|| "-".to_owned(), TargetPath::to_string);
    match outcome {
        Ok(_) => {
            tracing::info!(target: "audit", operation, volume, ?target, pid, outcome = "ok", microseconds = %microseconds)
        }
        Err(error) => {
            let kind = format!("{:?}", error.kind);
            tracing::warn!(target: "audit", operation, volume, ?target, pid, outcome = ?kind, error = ?error.message.as_str(), microseconds = %microseconds);
        }
    }
}

fn describe(request: &Request) -> (&'static str, Option<&VolumeId>, Option<&TargetPath>) {
    match request {
        Request::Create { volume, .. } => ("create", Some(volume), None),
        Request::SetQuota { volume, .. } => ("set-quota", Some(volume), None),
        Request::GrowImage { volume, .. } => ("grow-image", Some(volume), None),
        Request::BindMount { volume, target, .. } => ("bind-mount", Some(volume), Some(target)),
        Request::Unmount { volume, target } => ("unmount", Some(volume), Some(target)),
        Request::LoopAttach { volume, .. } => ("loop-attach", Some(volume), None),
        Request::LoopDetach { volume } => ("loop-detach", Some(volume), None),
        Request::LoopResize { volume } => ("loop-resize", Some(volume), None),
        Request::MakeDevice { volume, target, .. } => ("make-device", Some(volume), Some(target)),
        Request::RemoveDevice { volume, target } => ("remove-device", Some(volume), Some(target)),
        Request::Usage { volume, target } => ("usage", Some(volume), target.as_ref()),
        Request::List { .. } => ("list", None, None),
        Request::Delete { volume } => ("delete", Some(volume), None),
        Request::PoolStatus { .. } => ("pool-status", None, None),
        Request::Listen { .. } => ("listen", None, None),
        Request::DeleteUnused { volume } => ("delete-unused", Some(volume), None),
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            _ => 6,
        };
        let mut line =
            Line(format!("<{priority}>{}", event.metadata().target().split("::").next().unwrap_or_default()));
        event.record(&mut line);
        line.0.push('\n');
        // Nothing can be said about standard error but on standard error.
        let _ = std::io::stderr().write_all(line.0.as_bytes());
    }

    // No spans are used.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, " {field}={value}");
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, ": {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}
