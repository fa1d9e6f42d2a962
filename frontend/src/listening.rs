//! Where a server of this process is reached by TCP. It listens before entering the sandbox, which forbids that.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::str::FromStr;

/// An address and a port, or a port on all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress {
    /// `None` for all addresses.
    address: Option<IpAddr>,
    port: u16,
}

/// The address cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The text is not an address.
    #[error(
        "invalid address {0:?}: give an IP address and a port, such as 127.0.0.1:9808 or [::1]:9808, or :9808 for all addresses"
    )]
    Address(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {address} for {purpose}: {error}; is another program using the port?")]
    Listen {
        /// The address.
        address: ListenAddress,
        /// What it is for.
        purpose: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl ListenAddress {
    /// The port.
    pub fn port(self) -> u16 {
        self.port
    }

    /// Starts listening, for this purpose. The listener does not block.
    ///
    /// # Errors
    /// When the address is not this machine's, or its port is taken.
    pub fn listen(self, purpose: &'static str) -> Result<TcpListener, ListenError> {
        let listener = match self.address {
            Some(address) => TcpListener::bind((address, self.port)),
            // An IPv6 socket accepts IPv4 connections as well; only a machine without IPv6 needs an IPv4 socket.
            None => TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, self.port))),
        };
        let listener = listener.and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        listener.map_err(|error| ListenError::Listen { address: self, purpose, error })
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => SocketAddr::new(address, self.port).fmt(formatter),
            None => write!(formatter, ":{}", self.port),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = ListenError;

    fn from_str(text: &str) -> Result<Self, ListenError> {
        let parsed = match text.strip_prefix(':') {
            Some(port) => port.parse().ok().map(|port| Self { address: None, port }),
            None => text.parse::<SocketAddr>().ok().map(|at| Self { address: Some(at.ip()), port: at.port() }),
        };
        parsed.ok_or_else(|| ListenError::Address(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for text in ["127.0.0.1:9808", "[::1]:9808", "0.0.0.0:1", ":9808"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["", "9808", "localhost:9808", "::1:9808:", ":", ":x", "127.0.0.1", "/run/metrics.sock"] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
    }
}
