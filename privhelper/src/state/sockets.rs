//! The two listening sockets that the helper makes for the frontend and keeps, as an init system would: when a frontend
//! restarts, no connection is lost and the kubelet notices nothing.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use bulkhead_protocol::{Error, ErrorKind, Socket};
use rustix::net::SocketType;

use super::{failed, lock};
use crate::sys::{Errno, socket};

/// Where a socket appears.
#[derive(Debug)]
pub struct Place {
    /// The directory, in the jail.
    pub directory: OwnedFd,
    /// The name in it.
    pub name: String,
}

/// The sockets.
#[derive(Debug)]
pub struct Sockets {
    places: BTreeMap<Socket, Place>,
    listening: Mutex<BTreeMap<Socket, OwnedFd>>,
}

impl Sockets {
    /// The sockets that can be requested.
    pub fn new(places: BTreeMap<Socket, Place>) -> Self {
        Self { places, listening: Mutex::default() }
    }

    /// The listening socket, made when it is first requested.
    ///
    /// # Errors
    /// `Unsupported` when none is configured, `AlreadyExists` when something other than a socket has its name.
    pub fn listening(&self, which: Socket) -> Result<OwnedFd, Error> {
        let Some(place) = self.places.get(&which) else {
            let message = format!(
                "no {which:?} socket is configured; start the helper with --kubelet-dir or with the socket's own flag"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let mut listening = lock(&self.listening);
        if let Some(held) = listening.get(&which) {
            return copy(held).map_err(|errno| failed("duplicate the socket", &place.name, errno));
        }
        let made =
            socket::listen(&place.directory, &place.name, SocketType::STREAM, None).map_err(|errno| match errno {
                Errno::EXIST => Error::new(
                    ErrorKind::AlreadyExists,
                    format!("{} exists and is not a socket; remove it", place.name),
                ),
                errno => failed("make the socket", &place.name, errno),
            })?;
        let passed = copy(&made).map_err(|errno| failed("duplicate the socket", &place.name, errno))?;
        listening.insert(which, made);
        Ok(passed)
    }
}

fn copy(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::fcntl_dupfd_cloexec(socket, 0)
}
