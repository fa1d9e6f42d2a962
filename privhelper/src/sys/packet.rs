//! Packets between connected Unix sockets, and descriptors that come with them.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
pub use rustix::net::sockopt::Timeout;
use rustix::net::sockopt::set_socket_timeout;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::{Called, Errno, Error, Result};

/// A packet received into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A packet of this many bytes.
    Packet(usize),
    /// The packet was longer than the buffer.
    Truncated,
    /// The peer has closed the connection, or sent an empty packet, which is not allowed.
    Closed,
}

/// A pair of connected packet sockets.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).by("socketpair")
}

/// Waits until one of these connections is hung up, and returns which.
pub fn first_hung_up(connections: &[BorrowedFd<'_>]) -> Result<Option<usize>> {
    let mut polled: Vec<_> = connections.iter().map(|one| PollFd::new(one, PollFlags::RDHUP)).collect();
    rustix::event::poll(&mut polled, None).by("poll")?;
    Ok(polled.iter().position(|one| !one.revents().is_empty()))
}

/// Sets how long a receive or a send waits; `None` means forever.
pub fn set_timeout(socket: impl AsFd, of: Timeout, limit: Option<Duration>) -> Result<()> {
    set_socket_timeout(socket, of, limit).by("SO_RCVTIMEO or SO_SNDTIMEO")
}

/// Receives one packet. It leaves no room for descriptors: the kernel closes any that come uninvited.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> Result<Received> {
    let room = buffer.len();
    let (_, length) = rustix::net::recv(socket, buffer, RecvFlags::TRUNC).by("recv")?;
    Ok(match length {
        0 => Received::Closed,
        length if length > room => Received::Truncated,
        length => Received::Packet(length),
    })
}

/// Receives one packet, and the descriptor that comes with it if there is one.
pub fn receive_with_descriptor(socket: impl AsFd, buffer: &mut [u8]) -> Result<(Received, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let message = message.by("recvmsg")?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let received = match message.bytes {
        0 => Received::Closed,
        _ if message.flags.contains(ReturnFlags::TRUNC) => Received::Truncated,
        length => Received::Packet(length),
    };
    Ok((received, descriptor))
}

/// Makes a call on a connection again that has done nothing: for a second, unless there is nobody at the other end.
pub fn persistently<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..50 {
        match call() {
            Err(Error { errno: Errno::INTR, .. }) => {}
            Err(error) if ![Errno::PIPE, Errno::CONNRESET].contains(&error.errno) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
    call()
}

/// Sends one packet, and a descriptor with it if there is one.
pub fn send(socket: impl AsFd, packet: &[u8], descriptor: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|fd| [fd]);
    if let Some(descriptors) = &descriptors
        && !control.push(SendAncillaryMessage::ScmRights(descriptors))
    {
        return Err(Error::of(Errno::NOBUFS));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(packet)], &mut control, SendFlags::NOSIGNAL).map(drop).by("sendmsg")
}
