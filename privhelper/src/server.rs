//! Connections: a fixed number of threads, each serving one connection, one request at a time.
//!
//! A client that breaks the protocol gets no answer: its connection is closed. An operation that fails is answered with a
//! typed error.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_protocol::{Error, ErrorKind, Hello, MAX_PACKET, Request, Response, Welcome, decode, encode, negotiate};

use crate::audit::{self, Client};
use crate::capabilities;
use crate::dispatch::dispatch;
use crate::log;
use crate::ops;
use crate::state::State;
use crate::sys::socket::{self, Received};
use crate::sys::{Errno, capability, process};

/// How many connections are served at once; one more is closed.
const CONNECTIONS: usize = 8;
/// How long a client may take to send its hello.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// How long a client may leave a reply unread.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// What all connections share.
#[derive(Debug)]
pub struct Service {
    /// What the operations work on.
    pub state: State,
    /// The answer to a hello of the highest version.
    pub welcome: Welcome,
    /// The only user that is served.
    pub allowed_uid: u32,
}

/// A connection that was accepted, and its number.
type Connection = (OwnedFd, u64);

/// Threads that wait for connections. They are started before the seccomp filter is installed, which allows no others.
#[derive(Debug)]
pub struct Threads {
    connections: Sender<Connection>,
    /// A token for each thread that is free.
    free: Receiver<()>,
}

/// Starts the threads, and returns when each has a working directory of its own, which the filter would not allow.
///
/// # Errors
/// A sentence when one cannot be started.
pub fn start(service: &Arc<Service>) -> Result<Threads, String> {
    let (connections, waiting) = channel::<Connection>();
    let waiting = Arc::new(Mutex::new(waiting));
    let (freed, free) = channel();
    let (report, reports) = channel();
    let spawn = |work: Box<dyn FnOnce() + Send>| {
        let report = report.clone();
        let run = move || {
            let _ = report.send(process::own_working_directory());
            work();
        };
        let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(run);
        thread.map(drop).map_err(|error| format!("cannot start a thread: {error}"))
    };
    spawn(Box::new(log::write_out))?;
    let pools = service.state.pools.len();
    for pool in 0..pools {
        let own = Arc::clone(service);
        spawn(Box::new(move || finish_deletions(&own, pool)))?;
    }
    for _ in 0..CONNECTIONS {
        let (service, waiting, freed) = (Arc::clone(service), Arc::clone(&waiting), freed.clone());
        let _ = freed.send(());
        spawn(Box::new(move || work(&service, &waiting, &freed)))?;
    }
    for result in reports.iter().take(CONNECTIONS.saturating_add(pools).saturating_add(1)) {
        result.map_err(|errno| format!("cannot unshare a thread's working directory: {errno}"))?;
    }
    Ok(Threads { connections, free })
}

/// Accepts connections forever.
///
/// # Errors
/// When the listening socket fails.
pub fn serve(service: &Service, threads: &Threads, listener: &OwnedFd) -> Result<(), Errno> {
    let mut accepted = 0_u64;
    loop {
        let connection = match socket::accept(listener) {
            Ok(connection) => connection,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            Err(errno) => return Err(errno),
        };
        match socket::peer(&connection) {
            Ok(peer) if peer.uid == service.allowed_uid => {}
            Ok(peer) => {
                log::warning!("a connection of another user is closed uid={} pid={}", peer.uid, peer.pid);
                continue;
            }
            Err(errno) => {
                log::warning!("a connection of an unknown user is closed errno={errno}");
                continue;
            }
        }
        if threads.free.try_recv().is_err() {
            log::warning!("a connection is closed: {CONNECTIONS} connections are served already");
            continue;
        }
        // The threads live as long as the process.
        accepted = accepted.saturating_add(1);
        let _ = threads.connections.send((connection, accepted));
    }
}

fn work(service: &Service, waiting: &Mutex<Receiver<Connection>>, freed: &Sender<()>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((connection, number)) = next else { return };
        if let Err(why) = converse(service, &connection, number) {
            log::warning!("a connection is closed connection={number} why={why}");
        }
        drop(connection);
        let _ = freed.send(());
    }
}

fn finish_deletions(service: &Service, pool: usize) {
    let Ok(pool) = service.state.pool_at(pool) else { return };
    let _allowed = capability::allow(capabilities::RELEASE);
    if let Err(error) = pool.deletions.finish_all(&pool.ballast, |deletion| ops::release(pool, deletion)) {
        log::last_words(&format!("the helper exits: it cannot go on without the emptier error={error}"));
        std::process::exit(1);
    }
}

/// Serves one connection, from its hello to its end.
fn converse(service: &Service, connection: &OwnedFd, number: u64) -> Result<(), String> {
    let say = |errno: Errno| errno.to_string();
    let pid = socket::peer(connection).map_err(say)?.pid;
    let client = Client { connection: number, pid };
    let mut buffer = [0; MAX_PACKET];
    socket::set_send_timeout(connection, SEND_LIMIT).map_err(say)?;
    socket::set_receive_timeout(connection, Some(HELLO_LIMIT)).map_err(say)?;
    let Some(packet) = receive(connection, &mut buffer)? else { return Ok(()) };
    let hello: Hello = decode(packet).map_err(|error| format!("hello: {error}"))?;
    let agreed = negotiate(hello);
    let welcome = agreed.clone().map(|version| Welcome { version, ..service.welcome.clone() });
    send(connection, &welcome, None)?;
    let version = agreed.map_err(|error| error.to_string())?;
    log::info!("a frontend is connected connection={number} pid={pid} version={version}");
    socket::set_receive_timeout(connection, None).map_err(say)?;
    while let Some(packet) = receive(connection, &mut buffer)? {
        let request: Request = decode(packet).map_err(|error| format!("request: {error}"))?;
        let begun = Instant::now();
        let outcome = check_version(&request, version).and_then(|()| dispatch(&service.state, &request));
        audit::record(&request, client, &outcome, begun.elapsed().as_micros());
        let (response, descriptor): (Response, _) = match outcome {
            Ok((reply, descriptor)) => (Ok(reply), descriptor),
            Err(error) => (Err(error), None),
        };
        send(connection, &response, descriptor)?;
    }
    Ok(())
}

/// Refuses a request that is newer than the version in use, which a client must not send.
fn check_version(request: &Request, in_use: u16) -> Result<(), Error> {
    let (name, needed) = (request.name(), request.since_version());
    if needed <= in_use {
        return Ok(());
    }
    let message = format!(
        "request {name} needs protocol version {needed}, but this connection uses version {in_use}; connect again with a Hello of version {needed} or later"
    );
    Err(Error::new(ErrorKind::Invalid, message))
}

/// The next packet; `None` at the end of the connection.
fn receive<'a>(connection: &OwnedFd, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, String> {
    loop {
        match socket::receive(connection, buffer) {
            Ok(Received::Packet(length)) => return Ok(buffer.get(..length)),
            Ok(Received::Closed) | Err(Errno::CONNRESET) => return Ok(None),
            Ok(Received::Truncated) => return Err("a packet is longer than 4096 bytes".to_owned()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err("it sent nothing for five seconds".to_owned()),
            Err(errno) => return Err(errno.to_string()),
        }
    }
}

fn send(connection: &OwnedFd, value: &impl serde::Serialize, descriptor: Option<OwnedFd>) -> Result<(), String> {
    let packet = encode(value).map_err(|error| format!("reply: {error}"))?;
    let descriptor = descriptor.as_ref().map(AsFd::as_fd);
    socket::send(connection, &packet, descriptor).map_err(|errno| format!("reply: {errno}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_newer_than_the_version_in_use_is_refused() {
        let request = Request::DeleteUnused { volume: "pvc-1".parse().expect("a volume id") };
        let refusal = check_version(&request, 1).expect_err("it is newer");
        assert_eq!(refusal.kind, ErrorKind::Invalid);
        assert!(refusal.message.as_str().contains("delete-unused needs protocol version 2"), "{refusal}");
        assert_eq!(check_version(&request, 2), Ok(()));
        assert_eq!(check_version(&Request::List { after: None, limit: 1 }, 1), Ok(()));
    }
}
