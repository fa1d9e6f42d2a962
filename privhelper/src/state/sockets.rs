//! The two listening sockets that the helper makes for the frontend and keeps, as an init system would: when a frontend
//! restarts, no connection is lost and the kubelet notices nothing.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use bulkhead_protocol::{Error, ErrorKind, Socket};
use rustix::net::SocketType;

use super::{failed, lock};
use crate::sys::file::{self, FileId};
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
    listening: Mutex<BTreeMap<Socket, Listening>>,
}

/// A socket that was made.
#[derive(Debug)]
struct Listening {
    socket: OwnedFd,
    /// The entry that had its name then.
    entry: FileId,
}

impl Sockets {
    /// The sockets that can be requested.
    pub fn new(places: BTreeMap<Socket, Place>) -> Self {
        Self { places, listening: Mutex::default() }
    }

    /// The listening socket, made when it is first requested, and again when nobody can connect to it any more: a
    /// frontend that was given it may have shut it down, or its name may have been removed.
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
        let made = match listening.remove(&which).filter(|made| place.leads_to(made)) {
            Some(made) => made,
            None => place.listen()?,
        };
        let made = listening.entry(which).or_insert(made);
        rustix::io::fcntl_dupfd_cloexec(&made.socket, 0)
            .map_err(|errno| failed("duplicate the socket", &place.name, errno))
    }
}

impl Place {
    fn listen(&self) -> Result<Listening, Error> {
        let made = socket::listen(&self.directory, &self.name, SocketType::STREAM, None)
            .and_then(|socket| Ok(Listening { socket, entry: file::status_at(&self.directory, &self.name)?.id }));
        made.map_err(|errno| match errno {
            Errno::EXIST => {
                let message = format!("{} exists and is not a socket; remove it", self.name);
                Error::new(ErrorKind::AlreadyExists, message)
            }
            errno => failed("make the socket", &self.name, errno),
        })
    }

    /// Whether a client that connects here reaches that socket.
    fn leads_to(&self, made: &Listening) -> bool {
        let named = file::status_at(&self.directory, &self.name).is_ok_and(|status| status.id == made.entry);
        named && !socket::is_shut_down(&made.socket)
    }
}
