//! Why a request to the helper has no answer, or not the wanted one.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_protocol::{CodecError, Error};

/// Why there is no helper to talk to.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unreachable {
    /// Nothing listens at the socket, or it must not be used.
    #[error("the privileged helper does not answer at {}: {error}; is bulkhead-privhelper running, and allows it this process's user?", socket.display())]
    Connect {
        /// The helper's socket.
        socket: PathBuf,
        /// What the system said.
        error: Arc<io::Error>,
    },
    /// The helper closed the connection.
    #[error("the privileged helper closed the connection; try again")]
    Closed,
    /// Sending or receiving failed.
    #[error("the connection to the privileged helper broke: {0}; try again")]
    Broken(Arc<io::Error>),
    /// The helper accepts connections and says nothing.
    #[error("the privileged helper does not greet a new connection; try again")]
    Silent,
    /// What came is no answer.
    #[error("the privileged helper sent a {0}; are its release and this one compatible?")]
    Malformed(CodecError),
    /// The helper refuses to talk.
    #[error("the privileged helper refuses the connection: {0}")]
    Refused(Error),
    /// The helper wants to speak a version that is not known here.
    #[error("the privileged helper answered with protocol version {0}, which this release does not know")]
    Version(u16),
    /// The first connection is still being made.
    #[error("the privileged helper has not answered yet; try again")]
    NotYet,
}

impl Unreachable {
    /// Whether it passes by itself when the helper comes back.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Closed | Self::Broken(_) | Self::Silent | Self::NotYet => true,
            Self::Malformed(_) | Self::Refused(_) | Self::Version(_) => false,
        }
    }
}

/// Why a request has not led to what it asks for.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// There is no helper to talk to.
    #[error(transparent)]
    Away(#[from] Unreachable),
    /// The helper's answer is an error.
    #[error(transparent)]
    Answered(#[from] Error),
    /// The helper that runs is too old for the request.
    #[error("{0}: the privileged helper speaks an older protocol; upgrade bulkhead-privhelper")]
    TooNew(&'static str),
    /// The helper's answer is one to another request.
    #[error("{0}: the privileged helper's reply does not fit the request; are its release and this one compatible?")]
    Mismatched(&'static str),
}

impl CallError {
    /// Whether a new connection may bring an answer.
    pub(super) fn is_worth_repeating(&self) -> bool {
        matches!(self, Self::Away(Unreachable::Closed | Unreachable::Broken(_)))
    }
}
