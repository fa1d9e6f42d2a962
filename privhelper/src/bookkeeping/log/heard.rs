//! What the other processes of the helper say. Only the keeper writes to the log. What it writes for another names that one
//! and quotes it, so that one that is taken over can write no line of the keeper's.
//!
//! They say little. One that says much fills its own connection, and waits.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{IS_HEARD, Level, MAX_LINE, write};
use crate::sys::packet::Received;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, packet, process, socket, with_patience};

/// Another process, by its name.
struct Heard {
    name: &'static str,
    ear: OwnedFd,
    /// Held by whoever receives: what was there to receive is there still.
    turn: Mutex<()>,
}

/// Those that this process has forked, and that have not ended.
static HEARD: Mutex<Vec<Arc<Heard>>> = Mutex::new(Vec::new());

/// How long nobody is heard after each line: lines of the keeper's own are to be found long afterwards.
const PAUSE: Duration = Duration::from_secs(1);
/// How many lines of each are heard at the end.
const LAST: usize = 8;

/// Splits the process in two, as [`process::fork`] does. What the child, a process of that name, says from then on is heard
/// by this one.
pub fn fork(name: &'static str) -> SysResult<bool> {
    let (ear, mouth) = packet::pair()?;
    if process::fork()? {
        lock().clear();
        // Standard output may be the log too, and what is a socket can be sent to.
        rustix::stdio::dup2_stdout(&mouth).and_then(|()| rustix::stdio::dup2_stderr(&mouth)).by("dup3")?;
        IS_HEARD.store(true, Relaxed);
        return Ok(true);
    }
    lock().push(Arc::new(Heard { name, ear, turn: Mutex::new(()) }));
    Ok(false)
}

/// Returns whether this process has others to hear.
pub fn is_anybody() -> bool {
    !lock().is_empty()
}

/// Writes to the log what the others say, for as long as the process lives: by then, no thread may end.
pub fn hear() {
    loop {
        let others = lock().clone();
        let ears: Vec<_> = others.iter().map(|heard| heard.ear.as_fd()).collect();
        if ears.is_empty() || socket::wait_for_any(&ears).is_err_and(|error| error.errno != Errno::INTR) {
            std::thread::park();
        }
        for heard in &others {
            if heard.hear() {
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Writes to the log what they have said before this process ends: it may be why.
pub fn hear_last_words() {
    let others = lock().clone();
    for heard in &others {
        // Whoever has a line of it by now is to have written it before the process ends.
        let turn = with_patience(Errno::BUSY, || heard.turn.try_lock().map_err(|_| SysError::of(Errno::BUSY)));
        let _ = turn.map(|turn| (0..LAST).take_while(|_| heard.hear_now(&turn)).count());
    }
}

impl Heard {
    /// Writes one line to the log, if there is one now, and nobody else is about to.
    fn hear(&self) -> bool {
        self.turn.try_lock().is_ok_and(|turn| self.hear_now(&turn))
    }

    /// Writes one line to the log, if there is one now.
    fn hear_now(&self, _turn: &MutexGuard<'_, ()>) -> bool {
        let mut line = [0; MAX_LINE];
        let length = match socket::receive_at_once(&self.ear, &mut line) {
            Ok(Received::Packet(length)) => length,
            Ok(Received::Truncated) => line.len(),
            Err(SysError { errno: Errno::AGAIN | Errno::INTR, .. }) => return false,
            Ok(Received::Closed) | Err(_) => {
                lock().retain(|other| !std::ptr::eq(&raw const **other, self));
                return false;
            }
        };
        let (level, said) = understood(line.get(..length).unwrap_or_default());
        write(level, format_args!("bulkhead_privhelper: the {} says: {said:?}", self.name));
        true
    }
}

/// How severe a line is, and what it says.
fn understood(line: &[u8]) -> (Level, String) {
    let said = String::from_utf8_lossy(line);
    let (begin, rest) = said.split_at_checked(3).unwrap_or(("", &*said));
    let (level, said) = match begin {
        "<3>" => (Level::Error, rest),
        "<6>" => (Level::Info, rest),
        "<4>" => (Level::Warning, rest),
        _ => (Level::Warning, &*said),
    };
    let said = said.trim_end_matches('\n');
    (level, said.strip_prefix("bulkhead_privhelper: ").unwrap_or(said).to_owned())
}

fn lock() -> MutexGuard<'static, Vec<Arc<Heard>>> {
    HEARD.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_severe_it_is_or_is_a_warning() {
        for (line, level, said) in [
            ("<3>bulkhead_privhelper: it ends\n", Level::Error, "it ends"),
            ("<6>ready\n", Level::Info, "ready"),
            ("<0>audit operation=delete\n", Level::Warning, "<0>audit operation=delete"),
            ("a\n<6>audit\n", Level::Warning, "a\n<6>audit"),
            ("ü", Level::Warning, "ü"),
            ("", Level::Warning, ""),
        ] {
            let (found, text) = understood(line.as_bytes());
            assert_eq!((found as u8, text.as_str()), (level as u8, said), "{line:?}");
        }
        assert_eq!(understood(b"\xff\n").1, "\u{fffd}");
    }
}
