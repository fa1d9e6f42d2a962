//! Every request that may change something, or fails (to read a pool: for another reason than before), writes one log
//! line that begins with `audit`: what, with which fields, for which call of whom, how it ended and how long it took. A
//! frontend reads all the time, which would hide what it does. What is short and plain comes first; an error message and
//! a target, which may be long and hold anything, come last, so that the log can cut them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_protocol::{CallId, Error, ErrorKind, PoolName, Request, Text};

use crate::log::{self, Level, Slot};
use crate::state::busy;

/// Who sends a request.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The number of the connection, counted from the start of the helper.
    pub connection: u64,
    /// The process that opened it; 0 if it is in a pid namespace that cannot be seen from here, as in a pod.
    pub pid: i32,
    /// The call of its own that the request is part of, as it says.
    pub call: CallId,
}

/// Takes the place in the log of a request that may change something.
///
/// # Errors
/// `Busy` when there is none just now: nothing is changed that is not logged.
pub fn reserve(request: &Request) -> Result<Option<Slot>, Error> {
    if !request.row().changes {
        return Ok(None);
    }
    let busy = || busy(format!("{}: too much waits to be logged; try again", request.name()));
    log::slot().map(Some).ok_or_else(busy)
}

/// How long the same failure to read a pool is not logged again.
const SELDOM: Duration = Duration::from_secs(3600);

/// What was logged last of pools that cannot be read, by what was asked and the pool, and when.
type Told = BTreeMap<(&'static str, PoolName), (Text, Instant)>;

static TOLD: Mutex<Told> = Mutex::new(BTreeMap::new());

/// Writes the line for a request, unless it has only read something.
pub fn record(slot: Option<Slot>, request: &Request, client: Client, error: Option<&Error>, microseconds: u128) {
    if !is_news(&mut TOLD.lock().unwrap_or_else(PoisonError::into_inner), request, error, Instant::now()) {
        return;
    }
    let level = if error.is_none() { Level::Info } else { Level::Warning };
    let line = line(request, client, error, microseconds);
    match (slot, error) {
        (Some(slot), _) => slot.write(level, format_args!("{line}")),
        (None, Some(_)) => log::write(level, format_args!("{line}")),
        (None, None) => {}
    }
}

/// Returns whether it is worth a line how a request has ended. A pool that is not served stays so until somebody comes,
/// and a frontend asks for it every few seconds.
fn is_news(told: &mut Told, request: &Request, error: Option<&Error>, now: Instant) -> bool {
    let (Request::PoolStatus { pool } | Request::PoolCounts { pool }) = request else { return true };
    let key = (request.name(), pool.clone());
    match (error, told.get(&key)) {
        // Of pools that there are: not of any number of names.
        (Some(error), known) if error.kind == ErrorKind::PoolBroken => {
            let is_known = known.is_some_and(|(said, at)| *said == error.message && now.duration_since(*at) < SELDOM);
            if !is_known {
                told.insert(key, (error.message.clone(), now));
            }
            !is_known
        }
        (None, Some(_)) => {
            told.remove(&key);
            true
        }
        _ => true,
    }
}

fn line(request: &Request, client: Client, error: Option<&Error>, microseconds: u128) -> String {
    let mut line = format!("audit operation={}", request.name());
    // Writing to a string cannot fail.
    request.log(&mut |name, value| {
        let _ = write!(line, " {name}={value}");
    });
    let Client { connection, pid, call } = client;
    let ended = error.map_or_else(|| "ok".to_owned(), |error| format!("\"{:?}\"", error.kind));
    let _ = write!(line, " call={call} connection={connection} pid={pid} outcome={ended} microseconds={microseconds}");
    if let Some(error) = error {
        let _ = write!(line, " error={:?}", error.message.as_str());
    }
    if let Some(target) = request.target() {
        let _ = write!(line, " target={:?}", format!("{}:{}", target.directory, target.path.as_str()));
    }
    line
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::{ErrorKind, MountFlags, TargetPath, VolumeId};

    use super::*;
    use crate::dispatch::tests::requests;

    const CLIENT: Client = Client { connection: 3, pid: 7, call: CallId(0x2a) };

    fn target(path: &str) -> TargetPath {
        TargetPath { directory: "work".parse().expect("a name"), path: path.parse().expect("a path") }
    }

    #[test]
    fn a_line_has_what_is_bounded_first_and_what_is_hostile_last() {
        let volume: VolumeId = "vol-a".parse().expect("an id");
        assert_eq!(
            line(&Request::Unmount { volume, target: target("with space") }, CLIENT, None, 12),
            "audit operation=unmount volume=vol-a call=0000002a connection=3 pid=7 outcome=ok microseconds=12 target=\"work:with space\""
        );
        let error = Error::new(ErrorKind::NotFound, "no \"pool\"\nof that name");
        assert_eq!(
            line(&Request::PoolStatus { pool: "fast".parse().expect("a name") }, CLIENT, Some(&error), 12),
            r#"audit operation=pool-status pool=fast call=0000002a connection=3 pid=7 outcome="NotFound" microseconds=12 error="no \"pool\"\nof that name""#
        );
    }

    #[test]
    fn a_pool_that_cannot_be_read_is_news_once_and_when_that_changes() {
        let (mut told, begun) = (Told::new(), Instant::now());
        let status = |pool: &str| Request::PoolStatus { pool: pool.parse().expect("a name") };
        let counts = Request::PoolCounts { pool: "fast".parse().expect("a name") };
        let broken = |why: &str| Error::new(ErrorKind::PoolBroken, why);
        let mut news = |request: &Request, error: Option<&Error>, seconds: u64| {
            is_news(&mut told, request, error, begun + Duration::from_secs(seconds))
        };
        let (fast, unmounted, damaged) = (status("fast"), broken("unmounted"), broken("damaged"));
        assert!(news(&fast, Some(&unmounted), 0) && !news(&fast, Some(&unmounted), 12));
        assert!(news(&counts, Some(&unmounted), 13) && news(&status("slow"), Some(&unmounted), 14));
        assert!(!news(&fast, Some(&unmounted), 3599) && news(&fast, Some(&unmounted), 3601), "seldom, but again");
        assert!(news(&fast, Some(&damaged), 3602) && !news(&fast, Some(&damaged), 3603));
        assert!(news(&fast, None, 3604) && news(&fast, Some(&damaged), 3605), "it was served in between");
        let unknown = Error::new(ErrorKind::NotFound, "no such pool");
        assert!((0..3).all(|second| news(&status("none"), Some(&unknown), second)), "not one of ours");
        let delete = Request::Delete { volume: "vol-a".parse().expect("an id") };
        assert!((0..3).all(|second| news(&delete, Some(&damaged), second)));
    }

    #[test]
    fn a_line_has_every_field_of_the_request() {
        let line = |request: &Request| line(request, CLIENT, None, 12);
        for request in requests() {
            let (debug, line) = (format!("{request:?}"), line(&request));
            let fields = debug.split([' ', ',']).filter_map(|word| word.strip_suffix(':'));
            let fields = fields.filter(|field| *field != "target" || request.target().is_some());
            // What a field is made of stands for it, and the digest says nothing to anybody.
            for field in
                fields.filter(|field| !matches!(*field, "spec" | "kind" | "name_hash" | "flags" | "directory" | "path"))
            {
                assert!(line.contains(&format!(" {field}=")), "{field}: {line}");
            }
        }
        let flags = MountFlags { read_only: true, ..MountFlags::default() };
        let volume = "vol-a".parse().expect("an id");
        let bind = Request::BindMount { volume, target: target("t"), flags, exclusive: true };
        assert!(line(&bind).contains(" read_only=true no_exec=false no_atime=false no_diratime=false exclusive=true "));
        let none = Client { call: CallId::default(), ..CLIENT };
        assert!(super::line(&bind, none, None, 12).contains(" call=- connection="), "a client may be older");
    }

    #[test]
    fn whatever_a_request_says_its_line_is_one_line_and_what_is_bounded_comes_first() {
        let text = "\u{1}\n".repeat(127);
        let path = vec![text.as_str(); 14].join("/");
        let request = Request::Unmount { volume: "vol-a".parse().expect("an id"), target: target(&path) };
        let error = Error::new(ErrorKind::NotFound, path);
        let line = line(&request, CLIENT, Some(&error), u128::from(u64::MAX));
        assert!(!line.contains('\n'), "{line}");
        let bounded = line.split(" error=").next().expect("what comes first");
        assert!(bounded.len() < 200 && bounded.contains("microseconds="), "{bounded}");
        assert!(line.find(" target=").is_some_and(|at| at < 3500), "the error leaves room for some of the target");
    }
}
