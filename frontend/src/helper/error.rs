//! Failures of requests to the helper.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bulkhead_protocol::{CodecError, Error};

/// Why the helper cannot be reached.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unreachable {
    /// Nothing listens on the socket, or this process may not connect.
    #[error("cannot connect to the privileged helper at {}: {error}; is bulkhead-privhelper running, and does it allow this process's user?", socket.display())]
    Connect {
        /// The helper's socket.
        socket: PathBuf,
        /// The system's error.
        error: Arc<io::Error>,
    },
    /// The socket is another user's, and the helper serves nobody else.
    #[error("the privileged helper at {} serves user {owner}, and this process is user {own}: run it as user {owner}, or start bulkhead-privhelper with --allow-uid {own}", socket.display())]
    WrongUser {
        /// The helper's socket.
        socket: PathBuf,
        /// Whose it is.
        owner: u32,
        /// The user of this process.
        own: u32,
    },
    /// The helper closed the connection.
    #[error("the privileged helper closed the connection; try again")]
    Closed,
    /// Sending or receiving failed.
    #[error("the connection to the privileged helper failed: {0}; try again")]
    Broken(Arc<io::Error>),
    /// The helper accepts connections but does not answer.
    #[error("the privileged helper does not answer on a new connection; try again")]
    Silent,
    /// The packet is not a valid reply.
    #[error("cannot read the privileged helper's reply: {0}; are its release and this one compatible?")]
    Malformed(CodecError),
    /// The helper passed a descriptor, and the kernel did not hand it over.
    #[error(
        "the system keeps the privileged helper's socket from this process: where SELinux enforces, each program needs a domain of its own (docs/platforms.md#where-selinux-enforces); elsewhere, allow it more open files"
    )]
    Withheld,
    /// The helper refuses the connection.
    #[error("the privileged helper refuses the connection: {0}")]
    Refused(Error),
    /// The helper chose an unknown protocol version.
    #[error(
        "the privileged helper chose protocol version {0}, which this release does not know; upgrade bulkhead-frontend"
    )]
    Version(u16),
    /// The first connection has not been made yet.
    #[error("the privileged helper has not answered yet; try again")]
    NotYet,
}

impl Unreachable {
    /// This, with the likely reason: the system does not say that the socket is another user's, and the helper only
    /// hangs up.
    pub(super) fn explained(self, socket: &Path) -> Self {
        let may_be_another_users = match &self {
            Self::Connect { error, .. } => error.kind() == io::ErrorKind::PermissionDenied,
            why => matches!(why, Self::Closed | Self::Broken(_)),
        };
        let owner = fs::metadata(socket).ok().filter(|_| may_be_another_users).map(|found| found.uid());
        let own = rustix::process::geteuid().as_raw();
        match owner.filter(|owner| *owner != own) {
            Some(owner) => Self::WrongUser { socket: socket.to_owned(), owner, own },
            None => self,
        }
    }

    /// Returns whether the condition clears by itself when the helper comes back.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::WrongUser { .. }
            | Self::Closed
            | Self::Broken(_)
            | Self::Silent
            | Self::NotYet => true,
            Self::Malformed(_) | Self::Withheld | Self::Refused(_) | Self::Version(_) => false,
        }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// The helper cannot be reached.
    #[error(transparent)]
    Away(#[from] Unreachable),
    /// The helper replied with an error.
    #[error(transparent)]
    Answered(#[from] Error),
    /// The running helper is too old for the request.
    #[error("{0}: the privileged helper speaks an older protocol; upgrade bulkhead-privhelper")]
    TooNew(&'static str),
    /// The reply does not match the request.
    #[error("{0}: the privileged helper's reply does not match the request; are its release and this one compatible?")]
    Mismatched(&'static str),
}

impl CallError {
    /// Returns whether the request may succeed on a new connection.
    pub(super) fn is_worth_repeating(&self) -> bool {
        matches!(self, Self::Away(Unreachable::Closed | Unreachable::Broken(_)))
    }
}
