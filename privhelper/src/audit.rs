//! Every privileged operation is one log line that begins with `audit`: what, on which volume, at which target, for
//! whom, how it ended and how long it took.

use bulkhead_protocol::{Error, Request, TargetPath, VolumeId};

use crate::log::{Level, write};

/// Writes the line for a request.
pub fn record(request: &Request, pid: i32, outcome: &Result<impl Sized, Error>, microseconds: u128) {
    let level = if outcome.is_ok() { Level::Info } else { Level::Warning };
    write(level, format_args!("{}", line(request, pid, outcome.as_ref().err(), microseconds)));
}

fn line(request: &Request, pid: i32, error: Option<&Error>, microseconds: u128) -> String {
    let operation = request.name();
    let volume = request.volume().map_or("-", VolumeId::as_str);
    let target = request.target().map_or_else(|| "-".to_owned(), TargetPath::to_string);
    let outcome = error
        .map_or_else(|| "ok".to_owned(), |error| format!("\"{:?}\" error={:?}", error.kind, error.message.as_str()));
    format!(
        "audit operation={operation} volume={volume} target={target:?} pid={pid} outcome={outcome} microseconds={microseconds}"
    )
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::ErrorKind;

    use super::*;

    #[test]
    fn a_line_has_the_same_keys_in_the_same_order_however_the_operation_ended() {
        let volume: VolumeId = "vol-a".parse().expect("an id");
        let target: TargetPath =
            TargetPath { directory: "work".parse().expect("a name"), path: "with space".parse().expect("a path") };
        assert_eq!(
            line(&Request::Unmount { volume, target }, 7, None, 12),
            "audit operation=unmount volume=vol-a target=\"work:with space\" pid=7 outcome=ok microseconds=12"
        );
        let error = Error::new(ErrorKind::NotFound, "no \"pool\"\nof that name");
        assert_eq!(
            line(&Request::PoolStatus { pool: "fast".parse().expect("a name") }, 7, Some(&error), 12),
            r#"audit operation=pool-status volume=- target="-" pid=7 outcome="NotFound" error="no \"pool\"\nof that name" microseconds=12"#
        );
    }
}
