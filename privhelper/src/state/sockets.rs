//! The two listening sockets that the helper makes for the frontend and keeps, as an init system would: when a frontend
//! restarts, no connection is lost and the kubelet notices nothing. A frontend that still lives when another asks for
//! its socket loses it: it could go on accepting connections.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use bulkhead_protocol::{Error, ErrorKind, Socket};
use rustix::net::SocketType;

use super::{exists, failed, lock};
use crate::sys::file::{self, FileId};
use crate::sys::{Errno, socket, walk};

/// Where a socket appears.
#[derive(Debug)]
pub struct SocketPlace {
    /// The directory, in the jail.
    pub directory: OwnedFd,
    /// The name in it.
    pub name: String,
}

/// The sockets.
#[derive(Debug)]
pub struct Sockets {
    places: BTreeMap<Socket, SocketPlace>,
    listening: Mutex<BTreeMap<Socket, Listening>>,
}

/// At most this many clients are in the queue of a socket (`net.core.somaxconn`, by default).
const MOST_IN_QUEUE: usize = 4096;

/// A socket that was made.
#[derive(Debug)]
struct Listening {
    socket: OwnedFd,
    /// The entry that had its name then.
    entry: FileId,
    /// The process that was given it, and its number. KERNEL(6.5): until then it is not known, and each that asks gets a
    /// new socket.
    holder: Option<(OwnedFd, i32)>,
}

impl Sockets {
    /// The sockets that can be requested.
    pub fn new(places: BTreeMap<Socket, SocketPlace>) -> Self {
        Self { places, listening: Mutex::default() }
    }

    /// The listening socket for the process at the other end of a connection. It is made when it is first requested,
    /// again when nobody can connect to it any more (a frontend that was given it may have shut it down, or its name may
    /// have been removed), and again when another process that was given it still lives.
    ///
    /// # Errors
    /// `Unsupported` when none is configured, `AlreadyExists` when something other than a socket has its name.
    pub fn listening(&self, which: Socket, connection: &OwnedFd) -> Result<OwnedFd, Error> {
        let Some(place) = self.places.get(&which) else {
            let message = format!(
                "no {which:?} socket is configured; start the helper with --kubelet-dir or with the socket's own flag"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let mut listening = lock(&self.listening);
        let mut made = match listening.remove(&which) {
            Some(made) if place.leads_to(&made) && made.is_free_for(connection) => made,
            old => {
                old.iter().for_each(retire);
                place.listen()?
            }
        };
        made.holder = socket::peer_process(connection).ok().zip(socket::peer(connection).ok().map(|peer| peer.pid));
        let made = listening.entry(which).or_insert(made);
        walk::duplicate(&made.socket).map_err(|error| failed("duplicate the socket", &place.name, error))
    }

    /// Shuts down those whose names lead to them no more, as when somebody has removed them: their holder asks again then.
    pub fn retire_lost(&self) {
        let listening = lock(&self.listening);
        let is_lost = |which, made| self.places.get(which).is_some_and(|place| !place.leads_to(made));
        listening.iter().filter(|(which, made)| is_lost(*which, *made)).for_each(|(_, made)| retire(made));
    }
}

impl SocketPlace {
    fn listen(&self) -> Result<Listening, Error> {
        let made = socket::listen(&self.directory, &self.name, SocketType::STREAM, None).and_then(|socket| {
            Ok(Listening { socket, entry: file::status_at(&self.directory, &self.name)?.id, holder: None })
        });
        made.map_err(|error| match error.errno {
            Errno::EXIST => exists(format!("{} exists and is not a socket; remove it", self.name)),
            _ => failed("make the socket", &self.name, error),
        })
    }

    /// Returns whether a client that connects here reaches that socket.
    fn leads_to(&self, made: &Listening) -> bool {
        let named = file::status_at(&self.directory, &self.name).is_ok_and(|status| status.id == made.entry);
        named && !socket::is_shut_down(&made.socket)
    }
}

impl Listening {
    /// Returns whether nobody but the process at the other end of a connection can hold it.
    fn is_free_for(&self, connection: &OwnedFd) -> bool {
        let Some((process, pid)) = &self.holder else { return false };
        // While it lives, its number is its own; 0 is that of any process in another pid namespace.
        let is_the_same = || *pid != 0 && socket::peer(connection).is_ok_and(|peer| peer.pid == *pid);
        socket::has_ended(process) || is_the_same()
    }
}

/// Sees to it that whoever holds a listening socket accepts nothing more, and that clients that are waiting to be accepted
/// there do not wait for ever.
fn retire(made: &Listening) {
    // This fails if it was shut down before.
    let _ = socket::shut_down(&made.socket);
    // Once it is shut down, accept(2) does not wait.
    (0..MOST_IN_QUEUE).map_while(|_| socket::accept(&made.socket).ok()).for_each(drop);
}
