//! Unix sockets: packets in and out, who the peer is, and descriptors that are passed on.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use linux_raw_sys::net::SO_PEERPIDFD;
use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, FileType, Mode, RenameFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType,
};

use super::file::{self, raw_fd};
use super::packet::{self, Received};
use super::{Called, Errno, Error, Result, checked, with_patience};

/// Who is at the other end of a connection, as it was when it connected (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Process id, 0 if it is not visible from here.
    pub pid: i32,
    /// User id.
    pub uid: u32,
}

fn unconnected(socket_type: SocketType) -> Result<OwnedFd> {
    rustix::net::socket_with(AddressFamily::UNIX, socket_type, SocketFlags::CLOEXEC, None).by("socket")
}

/// A datagram socket connected to a name in the file system, or to an abstract one if it begins with `@`.
pub fn connect_datagram(path: &str) -> Result<OwnedFd> {
    let socket = unconnected(SocketType::DGRAM)?;
    let address = match path.strip_prefix('@') {
        Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(Error::of)?,
        None => SocketAddrUnix::new(path).map_err(Error::of)?,
    };
    rustix::net::connect(&socket, &address).by("connect")?;
    Ok(socket)
}

/// Sends one packet if there is room for it now.
pub fn send_at_once(socket: impl AsFd, packet: &[u8]) -> Result<()> {
    let mut nothing = SendAncillaryBuffer::default();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut nothing, flags).map(drop).by("sendmsg")
}

/// Waits until one of these connections has something to receive, or is hung up.
pub fn wait_for_any(connections: &[BorrowedFd<'_>]) -> Result<()> {
    let mut polled: Vec<_> = connections.iter().map(|one| PollFd::new(one, PollFlags::IN)).collect();
    rustix::event::poll(&mut polled, None).map(drop).by("poll")
}

/// Receives one packet if there is one now. Nobody else may receive meanwhile.
pub fn receive_at_once(socket: impl AsFd, buffer: &mut [u8]) -> Result<Received> {
    let mut polled = [PollFd::new(&socket, PollFlags::IN)];
    let found = rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).by("poll")?;
    if found == 0 { Err(Error::of(Errno::AGAIN)) } else { packet::receive(socket, buffer) }
}

/// A listening socket called `name` in `directory`, for the owner's use only. It replaces an older one; `EXIST` if what
/// is there is not a socket.
///
/// It is made under a name that begins with a dot and renamed once it listens: the kubelet ignores such names, and
/// nobody finds a socket that refuses connections. bind(2) takes no directory descriptor, so the calling thread must
/// have a working directory of its own.
pub fn listen(directory: &OwnedFd, name: &str, socket_type: SocketType, owner: Option<u32>) -> Result<OwnedFd> {
    if file::status_at(directory, name).is_ok_and(|status| status.file_type != FileType::Socket) {
        return Err(Error::of(Errno::EXIST));
    }
    let hidden = format!(".{name}");
    match file::remove(directory, &*hidden) {
        Ok(()) | Err(Error { errno: Errno::NOENT, .. }) => {}
        Err(error) => return Err(error),
    }
    let socket = unconnected(socket_type)?;
    // The directory entry gets the mode that the socket has when it is bound.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).by("fchmod")?;
    let address = SocketAddrUnix::new(&*hidden).map_err(Error::of)?;
    super::mount::in_directory(directory.as_fd(), || rustix::net::bind(&socket, &address).by_with("bind", &hidden))?;
    if let Some(uid) = owner {
        let uid = Some(rustix::fs::Uid::from_raw(uid));
        rustix::fs::chownat(directory, &*hidden, uid, None, AtFlags::SYMLINK_NOFOLLOW).by_with("fchownat", &hidden)?;
    }
    rustix::net::listen(&socket, 128).by("listen")?;
    let renamed = rustix::fs::renameat_with(directory, &*hidden, directory, name, RenameFlags::empty());
    renamed.by_with("renameat2", &hidden).map(|()| socket)
}

/// An unconnected socket with an abstract name, which no other socket of the network namespace can have; `ADDRINUSE` if
/// one still has it after two seconds.
pub fn take_name(name: &str) -> Result<OwnedFd> {
    let socket = unconnected(SocketType::STREAM)?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(Error::of)?;
    with_patience(Errno::ADDRINUSE, || rustix::net::bind(&socket, &address).by("bind"))?;
    Ok(socket)
}

/// Stops anybody from sending descriptors over connections to a listening socket (`SO_PASSRIGHTS`, Linux 6.16).
pub fn refuse_descriptors(listener: impl AsFd) -> Result<()> {
    const SO_PASSRIGHTS: i32 = 83;
    let (level, off) = (libc::SOL_SOCKET, 0_i32);
    let length = libc::socklen_t::try_from(size_of::<i32>()).map_err(|_| Error::of(Errno::OVERFLOW))?;
    // SAFETY: the kernel reads `length` bytes, one `int`, from `off`, which outlives the call.
    let returned =
        unsafe { libc::setsockopt(raw_fd(&listener), level, SO_PASSRIGHTS, (&raw const off).cast(), length) };
    checked(returned, "SO_PASSRIGHTS")
}

/// Returns whether it is known that nobody can connect to a listening socket any more, because it was shut down.
pub fn is_shut_down(listener: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&listener, PollFlags::RDHUP)];
    rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|found| found > 0)
}

/// Ends a connection for its peer. Nothing more is received over it.
pub fn shut_down(connection: impl AsFd) -> Result<()> {
    rustix::net::shutdown(connection, Shutdown::Both).by("shutdown")
}

/// The next connection.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC).by("accept4")
}

/// Returns whether the socket is a listening unix socket that preserves packet boundaries.
pub fn is_packet_listener(socket: impl AsFd) -> bool {
    use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
    socket_type(&socket) == Ok(SocketType::SEQPACKET)
        && socket_domain(&socket) == Ok(AddressFamily::UNIX)
        && socket_acceptconn(&socket) == Ok(true)
}

/// Who is at the other end.
pub fn peer(connection: impl AsFd) -> Result<Peer> {
    let mut raw = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).map_err(|_| Error::of(Errno::OVERFLOW))?;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the kernel writes at most `length` bytes, one `struct ucred`, to `raw`, and updates `length`; both
    // outlive the call. rustix would turn the pid into a NonZero, but it is 0 for a peer in another pid namespace.
    let returned =
        unsafe { libc::getsockopt(raw_fd(&connection), level, option, (&raw mut raw).cast(), &raw mut length) };
    checked(returned, "SO_PEERCRED")?;
    Ok(Peer { pid: raw.pid, uid: raw.uid })
}

/// The process at the other end of a connection, as something that can be asked whether it still lives
/// (`SO_PEERPIDFD`, unix(7), Linux 6.5).
pub fn peer_process(connection: impl AsFd) -> Result<OwnedFd> {
    let (level, option) = (libc::SOL_SOCKET, SO_PEERPIDFD as libc::c_int);
    let mut number: libc::c_int = -1;
    let mut length = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(|_| Error::of(Errno::OVERFLOW))?;
    let value = (&raw mut number).cast();
    // SAFETY: the kernel writes at most `length` bytes, one `int`, to `number`, which outlives the call.
    checked(unsafe { libc::getsockopt(raw_fd(&connection), level, option, value, &raw mut length) }, "SO_PEERPIDFD")?;
    // SAFETY: the kernel has just created this descriptor for the caller, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Returns whether a process that [`peer_process`] returned has ended.
pub fn has_ended(process: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&process, PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|found| found > 0)
}

/// Waits for a packet, and returns whether descriptors come with it. The packet stays queued: receiving it would close
/// them, and closing a descriptor may block (`SO_LINGER`, socket(7)).
pub fn brings_descriptors(socket: impl AsFd) -> Result<bool> {
    let mut none = RecvAncillaryBuffer::default();
    let message =
        rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut [])], &mut none, RecvFlags::PEEK).by("recvmsg")?;
    Ok(message.flags.contains(ReturnFlags::CTRUNC))
}

/// The descriptor that systemd passes at start (sd_listen_fds(3)): always number 3.
///
/// Call once, before anything is opened, and only when `LISTEN_PID` names this process.
pub fn passed_by_service_manager() -> Result<OwnedFd> {
    let number = 3;
    // SAFETY: this process has not opened any file yet, so descriptor 3, if it is open, was passed and has no other
    // owner.
    let socket = unsafe { OwnedFd::from_raw_fd(number) };
    let blocking = || rustix::fs::fcntl_setfl(&socket, rustix::fs::OFlags::empty());
    match rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).and_then(|()| blocking()) {
        Ok(()) => Ok(socket),
        Err(errno) => {
            // It is not open: there is nothing to close.
            std::mem::forget(socket);
            Err(errno).by("fcntl")
        }
    }
}

/// Closes every inherited descriptor except the three standard ones and those in `keep`.
pub fn close_all_but(keep: &[BorrowedFd<'_>]) -> Result<()> {
    let mut numbers: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(fd.as_raw_fd()).ok()).collect();
    numbers.sort_unstable();
    let mut first = 3;
    for number in numbers {
        if number > first {
            super::process::close_range(first, number.saturating_sub(1))?;
        }
        first = first.max(number.saturating_add(1));
    }
    super::process::close_range(first, u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::packet::{Received, pair, receive, send};

    #[test]
    fn a_descriptor_is_noticed_before_it_is_received() {
        let (ours, theirs) = pair().expect("a pair");
        for descriptor in [None, Some(theirs.as_fd())] {
            send(&theirs, b"packet", descriptor).expect("there is room");
            for _ in 0..2 {
                assert_eq!(brings_descriptors(&ours), Ok(descriptor.is_some()), "it stays where it is");
            }
            assert_eq!(receive(&ours, &mut [0; 16]), Ok(Received::Packet(6)));
        }
        shut_down(&theirs).expect("it is connected");
        assert_eq!(brings_descriptors(&ours), Ok(false));
        assert_eq!(receive(&ours, &mut [0; 16]), Ok(Received::Closed));
    }
}
