//! What the kernel tells of mounts that come to a namespace and leave it (fanotify(7), `FAN_REPORT_MNT`, Linux 6.15).
//!
//! It gives ids that are never used again, and nothing else: no descriptor of anything can be had from it.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::libc;
use rustix::fs::OFlags;

use crate::sys::{Called, Errno, Error, Result, checked, value, walk};

/// Who is told of the mounts of a namespace.
#[derive(Debug)]
pub struct MountChanges(OwnedFd);

/// What has happened to a mount, by its unique id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is in the namespace now.
    Attached(u64),
    /// It is there no more.
    Detached(u64),
    /// It is in another place of the namespace, or nobody knows what has happened.
    Other,
}

/// Flags of fanotify_init(2) and fanotify_mark(2), and bits of an event's mask, which libc does not have.
const REPORT_MNT: u32 = 0x4000;
/// See [`REPORT_MNT`].
const MARK_MNTNS: u32 = 0x110;
/// See [`REPORT_MNT`].
const ATTACHED: u64 = 0x0100_0000;
/// See [`REPORT_MNT`].
const DETACHED: u64 = 0x0200_0000;
/// The type of the part of an event that has a mount's id.
const INFO_TYPE_MNT: u8 = 7;

impl MountChanges {
    /// Is told from now on what happens in this namespace. At start only: it takes `CAP_SYS_ADMIN`.
    ///
    /// # Errors
    /// `INVAL` before Linux 6.15.
    pub fn open() -> Result<Self> {
        let namespace = walk::open_at_start("/proc/self/ns/mnt", OFlags::RDONLY)?;
        let flags = libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | REPORT_MNT;
        // SAFETY: the call takes two numbers.
        let group = value(unsafe { libc::fanotify_init(flags, 0) }, "fanotify_init")?;
        let group = i32::try_from(group).map_err(|_| Error::of(Errno::BADF))?;
        // SAFETY: the call above returned this descriptor, which nobody else knows.
        let group = unsafe { OwnedFd::from_raw_fd(group) };
        let (to, of, mark) = (group.as_raw_fd(), namespace.as_raw_fd(), libc::FAN_MARK_ADD | MARK_MNTNS);
        // SAFETY: both descriptors are open, and the path may be a null pointer: the mark is on what is open.
        let marked = unsafe { libc::fanotify_mark(to, mark, ATTACHED | DETACHED, of, std::ptr::null()) };
        checked(marked, "fanotify_mark").map(|()| Self(group))
    }

    /// Changes that another file tells of.
    #[cfg(test)]
    pub fn of(file: OwnedFd) -> Self {
        Self(file)
    }

    /// What has happened since the last time, in order. A system call that has attached a mount has returned only after it
    /// could be read here.
    pub fn read(&self) -> Result<Vec<Change>> {
        let (mut changes, mut buffer) = (Vec::new(), [0; 4 << 10]);
        loop {
            match rustix::io::read(&self.0, &mut buffer) {
                Err(Errno::AGAIN) => return Ok(changes),
                length => understand(buffer.get(..length.by("read")?).unwrap_or_default(), &mut changes),
            }
        }
    }
}

/// Understands events: `struct fanotify_event_metadata`, and behind it `struct fanotify_event_info_mnt`.
fn understand(mut events: &[u8], changes: &mut Vec<Change>) {
    while !events.is_empty() {
        let length = number(events, 0).and_then(|length| usize::try_from(u32::from_ne_bytes(length)).ok());
        let Some((event, rest)) = length.filter(|length| *length > 0).and_then(|end| events.split_at_checked(end))
        else {
            return changes.push(Change::Other);
        };
        changes.push(change(event).unwrap_or(Change::Other));
        events = rest;
    }
}

fn change(event: &[u8]) -> Option<Change> {
    let mask = u64::from_ne_bytes(number(event, 8)?);
    let info = event.get(usize::from(u16::from_ne_bytes(number(event, 6)?))..)?;
    let id = u64::from_ne_bytes(number(info, 8).filter(|_| info.first() == Some(&INFO_TYPE_MNT))?);
    match mask {
        ATTACHED => Some(Change::Attached(id)),
        DETACHED => Some(Change::Detached(id)),
        _ => None,
    }
}

fn number<const LENGTH: usize>(bytes: &[u8], offset: usize) -> Option<[u8; LENGTH]> {
    bytes.get(offset..)?.first_chunk().copied()
}

/// What tests of several modules need.
#[cfg(test)]
pub mod testing {
    use super::*;

    /// What the kernel writes of a mount.
    pub fn event(change: Change) -> Vec<u8> {
        let (mask, id) = match change {
            Change::Attached(id) => (ATTACHED, id),
            Change::Detached(id) => (DETACHED, id),
            // The queue has overflowed.
            Change::Other => {
                return [&24_u32.to_ne_bytes()[..], &[3, 0, 24, 0], &libc::FAN_Q_OVERFLOW.to_ne_bytes(), &[0; 8]]
                    .concat();
            }
        };
        let metadata = [&40_u32.to_ne_bytes()[..], &[3, 0, 24, 0], &mask.to_ne_bytes(), &[0; 8]].concat();
        [&metadata[..], &[INFO_TYPE_MNT, 0, 16, 0, 0, 0, 0, 0], &id.to_ne_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::event;
    use super::*;

    fn understood(events: &[u8]) -> Vec<Change> {
        let mut changes = Vec::new();
        understand(events, &mut changes);
        changes
    }

    #[test]
    fn each_event_is_understood_and_doubts_are_told() {
        let all = [Change::Attached(1 << 40), Change::Detached(7), Change::Other, Change::Attached(8)];
        let events = all.map(event).concat();
        assert_eq!(understood(&events), all);
        assert_eq!(understood(&[]), []);
        for length in 1..40 {
            assert_eq!(understood(&events[..length]), [Change::Other], "{length}");
        }
        let mut moved = event(Change::Attached(5));
        moved[11] |= 2;
        assert_eq!(understood(&moved), [Change::Other], "attached and detached at once");
        let mut of_another_kind = event(Change::Attached(5));
        of_another_kind[24] = 1;
        assert_eq!(understood(&of_another_kind), [Change::Other]);
        assert_eq!(understood(&[0; 40]), [Change::Other], "an event without length");
    }
}
