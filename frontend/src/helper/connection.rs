//! One connection: one packet out, one packet in.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::{CallId, CodecError, Error, HIGHEST_VERSION, Hello, MAX_PACKET, Request, Response, Welcome};
use bulkhead_protocol::{decode, encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tokio_seqpacket::UnixSeqpacket;
use tokio_seqpacket::ancillary::OwnedAncillaryMessage;

use super::error::{CallError, Unreachable};
use crate::call_id;

/// The version from which on a request may be followed by the number of a call.
const NUMBERED: u16 = 3;

/// How long the helper may take to answer a hello. It has a thread ready for each connection it accepts.
const GREETING: Duration = Duration::from_secs(2);

/// Space for one file descriptor, and for a second, so that one too many is noticed and closed. Aligned like the
/// kernel's headers that it contains.
#[repr(align(8))]
struct Ancillary([u8; 64]);

/// A connection that has completed its handshake.
pub(super) struct Connection {
    socket: UnixSeqpacket,
    buffer: Box<[u8; MAX_PACKET]>,
    version: u16,
    /// The run of the helper that it is connected to.
    pub(super) generation: u64,
}

impl Connection {
    /// Opens a connection and returns it with the helper's welcome.
    pub(super) async fn open(path: &Path, generation: u64) -> Result<(Self, Welcome), Unreachable> {
        Self::try_open(path, generation).await.map_err(|why| why.explained(path))
    }

    async fn try_open(path: &Path, generation: u64) -> Result<(Self, Welcome), Unreachable> {
        let socket = UnixSeqpacket::connect(path)
            .await
            .map_err(|error| Unreachable::Connect { socket: path.to_owned(), error: Arc::new(error) })?;
        let mut connection = Self { socket, buffer: Box::new([0; MAX_PACKET]), version: HIGHEST_VERSION, generation };
        let welcome = timeout(GREETING, connection.greet()).await.map_err(|_| Unreachable::Silent)??;
        connection.version = welcome.version;
        Ok((connection, welcome))
    }

    async fn greet(&mut self) -> Result<Welcome, Unreachable> {
        self.send(&encode(&Hello::new(HIGHEST_VERSION)).map_err(Unreachable::Malformed)?).await?;
        let (answer, _) = self.receive::<Result<Welcome, Error>>().await?;
        let welcome = answer.map_err(Unreachable::Refused)?;
        if welcome.version == 0 || welcome.version > HIGHEST_VERSION {
            return Err(Unreachable::Version(welcome.version));
        }
        Ok(welcome)
    }

    /// Sends `request`, with the number of the call that it is part of, and waits for its reply. If this is interrupted, the connection can no longer be used.
    pub(super) async fn exchange(&mut self, request: &Request) -> Result<(Response, Option<OwnedFd>), CallError> {
        if request.since_version() > self.version {
            return Err(CallError::TooNew(request.name()));
        }
        let call = call_id::current();
        let is_numbered = self.version >= NUMBERED && call != CallId::default();
        let packet = if is_numbered { encode(&(request, call)) } else { encode(request) };
        let packet = packet.map_err(Unreachable::Malformed)?;
        self.send(&packet).await?;
        Ok(self.receive().await?)
    }

    /// Returns whether the helper has closed this idle connection.
    pub(super) fn is_hung_up(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An idle connection has nothing to read unless the helper has closed it.
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        !matches!(poll(&mut polled, Some(&now)), Ok(0))
    }

    async fn send(&self, packet: &[u8]) -> Result<(), Unreachable> {
        self.socket.send(packet).await.map(drop).map_err(|error| Unreachable::Broken(Arc::new(error)))
    }

    async fn receive<T: DeserializeOwned>(&mut self) -> Result<(T, Option<OwnedFd>), Unreachable> {
        let mut ancillary = Ancillary([0; 64]);
        let mut slices = [IoSliceMut::new(&mut self.buffer[..])];
        let (info, attached) = self
            .socket
            .recv_vectored_with_ancillary(&mut slices, &mut ancillary.0)
            .await
            .map_err(|error| Unreachable::Broken(Arc::new(error)))?;
        // Unexpected descriptors are closed when they go out of scope.
        let mut descriptors = Vec::new();
        for message in attached.into_messages() {
            if let OwnedAncillaryMessage::FileDescriptors(received) = message {
                descriptors.extend(received);
            }
        }
        if info.bytes_read() == 0 {
            return Err(Unreachable::Closed);
        }
        if info.ancillary_truncated() && descriptors.is_empty() {
            return Err(Unreachable::Withheld);
        }
        if info.truncated() || info.ancillary_truncated() || descriptors.len() > 1 {
            return Err(Unreachable::Malformed(CodecError::TooLong));
        }
        let value = decode(&self.buffer[..info.bytes_read()]).map_err(Unreachable::Malformed)?;
        Ok((value, descriptors.pop()))
    }
}
