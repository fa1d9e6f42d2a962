//! The third process of a pool, which is there only if the pool is configured for filesystems in images. It mounts what is
//! on a loop device, and attaches the mount to nothing: the placer, which gets it, places it. So who can make a mount cannot
//! place it, and who can place one cannot make it. Nor does it choose what it mounts: filesystem, device and options come
//! from the placer as the kernel's own object, in which a mounter's filter lets nothing be set.
//!
//! How long a mount takes is up to whoever wrote to the filesystem: the kernel makes up for what was not finished in it; and
//! whoever has frozen it holds up its growth. So each is the work of a child of its own, which holds nothing else, and which
//! nobody waits for longer than they like.
//!
//! It is a user of its own, and its root holds nothing but the nodes of the devices that are being mounted, which it can
//! name and not open.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::capabilities::MOUNTER;
use crate::sys::capability::{self, allow};
use crate::sys::packet::{Received, Timeout};
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, namespace, packet, process, socket, xfs};

/// The node in the mounter's root of the loop device with this number. The placer names it, and the kernel looks it up there.
pub fn node(number: u32) -> String {
    format!("loop{number}")
}

/// What is done by a child of the mounter's: to what comes with it, which is the filesystem's root, or what is to become a
/// mount of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Mounting it, as the placer has configured it: which filesystem on which device, and with which options.
    Mount,
    /// Bringing what is in memory of a mounted filesystem to its device.
    Sync,
    /// Freezing it and thawing it: all of it is on its device then, the superblock too.
    Settle,
    /// Thawing it.
    Thaw,
    /// Making it this large, in bytes.
    Grow(u64),
    /// Freezing it, saying so ([`FROZEN`]), and thawing it once whoever has asked says so, or is gone, or too long has passed.
    Hold,
}

/// No request for it is longer.
const MAX_LENGTH: usize = 16;

/// What is said of a filesystem that is frozen, before it is said how that ended.
pub const FROZEN: i32 = -1;

/// How long a filesystem is kept frozen at most.
pub const LONGEST_HOLD: Duration = Duration::from_secs(2);

impl Work {
    /// Does it, for whoever has asked for it over this line, and returns the mount if it is one.
    fn carry_out(self, root: &OwnedFd, line: &OwnedFd) -> SysResult<Option<OwnedFd>> {
        let _allowed = allow(MOUNTER);
        let thaw = || capability::with(MOUNTER, || xfs::thaw(root));
        match self {
            // Two calls in a row, and each takes it: the filesystem is made, and its mount.
            Self::Mount => capability::with(MOUNTER, || namespace::create(root, xfs::FLAGS)).map(Some),
            Self::Sync => rustix::fs::syncfs(root).by("syncfs").map(|()| None),
            Self::Settle | Self::Hold => {
                // So that there is little left to do while it is frozen.
                rustix::fs::syncfs(root).by("syncfs")?;
                packet::set_timeout(line, Timeout::Recv, Some(LONGEST_HOLD))?;
                capability::with(MOUNTER, || xfs::freeze(root))?;
                let lasted = if self == Self::Hold { hold(line) } else { Ok(()) };
                match (thaw().or_else(|_| thaw()), self) {
                    (Ok(()), _) => lasted.map(|()| None),
                    // Somebody else has thawed it.
                    (Err(SysError { errno: Errno::INVAL, .. }), Self::Settle) => Ok(None),
                    (Err(SysError { errno: Errno::INVAL, .. }), _) => Err(SysError::of(Errno::TIMEDOUT)),
                    // It is frozen still, and so this is not over.
                    (Err(_), _) => Err(SysError::of(Errno::INPROGRESS)),
                }
            }
            Self::Thaw => thaw().map(|()| None),
            Self::Grow(size) => capability::with(MOUNTER, || xfs::grow(root, size)).map(|()| None),
        }
    }
}

/// Says that what was to be frozen is, and waits until it is to be thawed.
///
/// # Errors
/// When that is so for another reason than that whoever has asked says so.
fn hold(line: &OwnedFd) -> SysResult<()> {
    packet::send(line, &FROZEN.to_ne_bytes(), None)?;
    let asked = matches!(packet::receive(line, &mut [0; 1]), Ok(Received::Packet(_)));
    if asked { Ok(()) } else { Err(SysError::of(Errno::TIMEDOUT)) }
}

/// Forks a child for each line that comes, until the placer is gone.
pub fn run(placer: &OwnedFd) -> Result<(), String> {
    loop {
        let line = match packet::receive_with_descriptor(placer, &mut [0; 1]) {
            Ok((Received::Packet(_), Some(line))) => line,
            Ok((Received::Closed, None)) => return Ok(()),
            Ok(_) => return Err("the mounter received a packet that is no line".to_owned()),
            Err(SysError { errno: Errno::INTR, .. }) => continue,
            Err(error) => return Err(format!("the mounter cannot receive from the placer: {error}")),
        };
        // Without a child, the placer sees the end of the line.
        if process::fork().unwrap_or(false) {
            // It sees the end of the mounter by its connection, of which this is another copy.
            let alone = socket::close_all_but(&[line.as_fd()]);
            let _ = alone.and_then(|()| serve(&line));
            std::process::exit(0);
        }
    }
}

/// Receives what is to be done, does it, and answers: with 0, and the mount if it is one, or with the kernel's error number.
/// Whoever asked may have stopped waiting.
fn serve(line: &OwnedFd) -> SysResult<()> {
    let mut packet = [0; MAX_LENGTH];
    let (received, with) = packet::receive_with_descriptor(line, &mut packet)?;
    let packet = if let Received::Packet(length) = received { packet.get(..length) } else { None };
    let work = packet.and_then(|packet| bulkhead_protocol::decode(packet).ok()).ok_or(SysError::of(Errno::INVAL));
    let done = work.and_then(|work: Work| work.carry_out(with.as_ref().ok_or(SysError::of(Errno::BADF))?, line));
    // Whoever is told of the end may want to unmount it.
    drop(with);
    let errno = done.as_ref().map_or_else(|error| error.errno.raw_os_error(), |_| 0);
    let mount = done.as_ref().ok().and_then(Option::as_ref);
    packet::send(line, &errno.to_ne_bytes(), mount.map(AsFd::as_fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what becomes of a mounter whose placer sends these, each with a line unless it is not to have one, and ends;
    /// and what is answered over the lines to this packet.
    fn sent(lines: &[bool], packet: &[u8]) -> (Result<(), String>, Vec<Option<i32>>) {
        let (placer, other) = packet::pair().expect("a pair");
        let mut ours = Vec::new();
        for has_line in lines {
            let (line, end) = packet::pair().expect("a pair");
            packet::send(&placer, b"1", has_line.then(|| end.as_fd())).expect("there is room");
            packet::send(&line, packet, None).expect("there is room");
            ours.push(line);
        }
        drop(placer);
        let ended = run(&other);
        // What it has not received is closed with it.
        drop(other);
        let answered = |line: &OwnedFd| {
            let mut answer = [0; 4];
            match packet::receive_with_descriptor(line, &mut answer) {
                Ok((Received::Packet(4), None)) => Some(i32::from_ne_bytes(answer)),
                Ok((Received::Closed, None)) | Err(SysError { errno: Errno::CONNRESET, .. }) => None,
                other => panic!("{other:?}"),
            }
        };
        (ended, ours.iter().map(answered).collect())
    }

    #[test]
    fn the_placer_gets_an_error_for_what_cannot_be_done() {
        let packet = |work: Work| bulkhead_protocol::encode(&work).expect("it can be encoded");
        for work in [Work::Mount, Work::Sync, Work::Settle, Work::Thaw, Work::Grow(1), Work::Hold] {
            let (_, answers) = sent(&[true, true], &packet(work));
            assert!(answers.iter().all(|answer| answer.is_some_and(|errno| errno > 0)), "{work:?}: {answers:?}");
        }
        for wrong in [&[6][..], &[0], &[0, 255], &[1, 1], &[255; MAX_LENGTH], &[1; MAX_LENGTH + 1]] {
            assert_eq!(sent(&[true], wrong), (Ok(()), vec![Some(Errno::INVAL.raw_os_error())]), "{wrong:?}");
        }
    }

    #[test]
    fn a_mounter_ends_with_its_placer_and_at_what_is_no_line() {
        assert_eq!(sent(&[], &[]), (Ok(()), Vec::new()));
        let (ended, answers) = sent(&[true, false, true], &[0, 0]);
        assert!(ended.is_err_and(|complaint| complaint.contains("no line")));
        assert_eq!(answers.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false]);
    }
}
