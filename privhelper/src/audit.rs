//! Every privileged operation writes one log line that begins with `audit`: what, on which volume, at which target,
//! how, for whom, how it ended and how long it took.

use bulkhead_protocol::{Error, Request, VolumeId};

use crate::log::{Level, write};

/// How many bytes of a line a target and an error message may take. Escaping can make them five times as long.
const MAX_TARGET: usize = 2048;
const MAX_ERROR: usize = 1024;

/// Who sends a request.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The number of the connection, counted from the start of the helper.
    pub connection: u64,
    /// The process that opened it; 0 if it is in a pid namespace that cannot be seen from here, as in a pod.
    pub pid: i32,
}

/// Writes the line for a request.
pub fn record(request: &Request, client: Client, outcome: &Result<impl Sized, Error>, microseconds: u128) {
    let level = if outcome.is_ok() { Level::Info } else { Level::Warning };
    write(level, format_args!("{}", line(request, client, outcome.as_ref().err(), microseconds)));
}

fn line(request: &Request, client: Client, error: Option<&Error>, microseconds: u128) -> String {
    let operation = request.name();
    let volume = request.volume().map_or("-", VolumeId::as_str);
    let target = request.target().map_or_else(|| "-".to_owned(), ToString::to_string);
    let (target, arguments) = (quoted(&target, MAX_TARGET), arguments(request));
    let Client { connection, pid } = client;
    let outcome = error.map_or_else(
        || "ok".to_owned(),
        |error| format!("\"{:?}\" error={}", error.kind, quoted(error.message.as_str(), MAX_ERROR)),
    );
    format!(
        "audit operation={operation} volume={volume} target={target}{arguments} connection={connection} pid={pid} outcome={outcome} microseconds={microseconds}"
    )
}

/// What a request says beyond its volume and target.
fn arguments(request: &Request) -> String {
    match request {
        Request::Create { pool, spec, .. } => format!(" pool={pool} size={}", spec.size),
        Request::SetQuota { size, .. } | Request::GrowImage { size, .. } => format!(" size={size}"),
        Request::BindMount { flags, exclusive, .. } => {
            format!(" read_only={} no_exec={} exclusive={exclusive}", flags.read_only, flags.no_exec)
        }
        Request::LoopAttach { read_only, .. } => format!(" read_only={read_only}"),
        Request::MakeDevice { exclusive, .. } => format!(" exclusive={exclusive}"),
        Request::PoolStatus { pool } => format!(" pool={pool}"),
        Request::Listen { socket } => format!(" socket={socket:?}"),
        Request::Unmount { .. }
        | Request::LoopDetach { .. }
        | Request::LoopResize { .. }
        | Request::RemoveDevice { .. }
        | Request::Usage { .. }
        | Request::List { .. }
        | Request::Delete { .. }
        | Request::DeleteUnused { .. } => String::new(),
    }
}

/// A text in quotes with its special characters escaped. A text that would take more than `limit` bytes is cut and
/// followed by three dots.
fn quoted(text: &str, limit: usize) -> String {
    let mut room = limit;
    let mut fits = |character: &char| {
        let escaped: usize = character.escape_debug().map(char::len_utf8).sum();
        let left = room.checked_sub(escaped);
        room = left.unwrap_or_default();
        left.is_some()
    };
    let kept: String = text.chars().take_while(|character| fits(character)).collect();
    let mark = if kept.len() < text.len() { "..." } else { "" };
    format!("{kept:?}{mark}")
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::{ErrorKind, MountFlags, TargetPath};

    use super::*;
    use crate::dispatch::tests::requests;

    const CLIENT: Client = Client { connection: 3, pid: 7 };

    fn target(path: &str) -> TargetPath {
        TargetPath { directory: "work".parse().expect("a name"), path: path.parse().expect("a path") }
    }

    #[test]
    fn a_line_has_the_same_keys_in_the_same_order_however_the_operation_ended() {
        let volume: VolumeId = "vol-a".parse().expect("an id");
        assert_eq!(
            line(&Request::Unmount { volume, target: target("with space") }, CLIENT, None, 12),
            "audit operation=unmount volume=vol-a target=\"work:with space\" connection=3 pid=7 outcome=ok microseconds=12"
        );
        let error = Error::new(ErrorKind::NotFound, "no \"pool\"\nof that name");
        assert_eq!(
            line(&Request::PoolStatus { pool: "fast".parse().expect("a name") }, CLIENT, Some(&error), 12),
            r#"audit operation=pool-status volume=- target="-" pool=fast connection=3 pid=7 outcome="NotFound" error="no \"pool\"\nof that name" microseconds=12"#
        );
    }

    #[test]
    fn a_line_says_how_something_is_done() {
        let volume: VolumeId = "vol-a".parse().expect("an id");
        let flags = MountFlags { read_only: true, ..MountFlags::default() };
        let bind = Request::BindMount { volume: volume.clone(), target: target("t"), flags, exclusive: true };
        assert_eq!(arguments(&bind), " read_only=true no_exec=false exclusive=true");
        assert_eq!(arguments(&Request::LoopAttach { volume, read_only: false }), " read_only=false");
        for request in requests() {
            let sized = matches!(request.name(), "create" | "set-quota" | "grow-image");
            assert_eq!(arguments(&request).contains(" size="), sized, "{request:?}");
        }
    }

    #[test]
    fn the_longest_hostile_request_makes_a_bounded_line() {
        let text = "\u{1}".repeat(254);
        let path = vec![text.as_str(); 14].join("/");
        let request = Request::Unmount { volume: "vol-a".parse().expect("an id"), target: target(&path) };
        let error = Error::new(ErrorKind::NotFound, path);
        let line = line(&request, CLIENT, Some(&error), u128::from(u64::MAX));
        assert!(line.len() < 3600, "{}", line.len());
        assert!(line.contains(r#"\u{1}"... connection=3 "#) && line.contains("microseconds="), "{line}");
        assert_eq!(quoted("ü\"", 4), "\"ü\\\"\"");
        assert_eq!(quoted("ü\"", 3), "\"ü\"...");
    }
}
