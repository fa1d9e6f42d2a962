//! Connections: a fixed number of threads, each serving one connection, one request at a time.
//!
//! A client that breaks the protocol gets no answer: its connection is closed. An operation that fails is answered with
//! a typed error.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_protocol::{Error, ErrorKind, Hello, MAX_PACKET, Request, Response, Welcome, decode, encode, negotiate};

use crate::audit::{self, Client};
use crate::capabilities;
use crate::dispatch::dispatch;
use crate::log;
use crate::ops;
use crate::state::{MOST_ON_A_FILESYSTEM, State};
use crate::sys::socket::{self, Received};
use crate::sys::{Errno, capability, process};

/// How many connections are served at once, one thread each, besides those whose operations may hang on a pool's
/// filesystem. A frontend opens sixteen besides its own that hang, and somebody may check whether the helper can be
/// reached.
const CONNECTIONS: usize = 17;
/// How many connections may wait to be closed.
const MOST_CLOSING: usize = 256;
/// How long a client may take to send its hello.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// How long a client may leave a reply unread.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// What all connections share.
#[derive(Debug)]
pub struct Service {
    /// What the operations work on.
    pub state: State,
    /// The answer to a hello with the highest version.
    pub welcome: Welcome,
    /// The only user that is served.
    pub allowed_uid: u32,
}

/// A connection that was accepted, and its number.
type Connection = (OwnedFd, u64);

/// Threads that wait for connections. They are started before the seccomp filter is installed, which does not allow
/// starting others.
#[derive(Debug)]
pub struct Threads {
    connections: Sender<Connection>,
    closing: SyncSender<OwnedFd>,
    /// A token for each thread that is free.
    free: Receiver<()>,
}

/// Starts the threads, and returns when each has a working directory of its own: the filter would not allow that later.
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
    let (closing, closed) = sync_channel::<OwnedFd>(MOST_CLOSING);
    spawn(Box::new(log::write_out))?;
    spawn(Box::new(move || closed.into_iter().for_each(drop)))?;
    let devices = Arc::clone(service);
    spawn(Box::new(move || devices.state.loops.remove_surplus()))?;
    let pools = service.state.pools.len();
    for pool in 0..pools {
        let own = Arc::clone(service);
        spawn(Box::new(move || finish_deletions(&own, pool)))?;
    }
    let number = connections_for(pools);
    for _ in 0..number {
        let (service, waiting, freed) = (Arc::clone(service), Arc::clone(&waiting), freed.clone());
        let closing = closing.clone();
        let _ = freed.send(());
        spawn(Box::new(move || work(&service, &waiting, &closing, &freed)))?;
    }
    for result in reports.iter().take(number.saturating_add(pools).saturating_add(3)) {
        result.map_err(|errno| format!("cannot unshare a thread's working directory: {errno}"))?;
    }
    Ok(Threads { connections, closing, free })
}

/// However many pools hang, [`CONNECTIONS`] other connections are served.
const fn connections_for(pools: usize) -> usize {
    MOST_ON_A_FILESYSTEM.saturating_mul(pools).saturating_add(CONNECTIONS)
}

/// Accepts connections forever.
///
/// # Errors
/// When the listening socket fails.
pub fn serve(service: &Service, threads: &Threads, listener: &OwnedFd) -> Result<(), Errno> {
    let mut accepted = 0_u64;
    let mut refusals = Refusals::default();
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
        let refusal = match socket::peer(&connection) {
            Ok(peer) if peer.uid != service.allowed_uid => {
                Some(format!("of another user uid={} pid={}", peer.uid, peer.pid))
            }
            Ok(_) if threads.free.try_recv().is_err() => Some("beyond the number served at once".to_owned()),
            Ok(_) => None,
            Err(errno) => Some(format!("of an unknown user errno={errno}")),
        };
        if let Some(why) = refusal {
            if let Some(number) = refusals.due(Instant::now()) {
                log::warning!("connections are closed: {number} since the last such line, this one {why}");
            }
            close(connection, &threads.closing);
            continue;
        }
        accepted = accepted.saturating_add(1);
        // The threads live as long as the process.
        let _ = threads.connections.send((connection, accepted));
    }
}

/// Connections that were refused. Anybody who can connect could fill the log with them.
#[derive(Debug, Default)]
struct Refusals {
    number: u64,
    said: Option<Instant>,
}

impl Refusals {
    /// Notes one, and returns their number since the last line if a second has passed.
    fn due(&mut self, now: Instant) -> Option<u64> {
        self.number = self.number.saturating_add(1);
        if self.said.is_some_and(|said| now.saturating_duration_since(said) < Duration::from_secs(1)) {
            return None;
        }
        self.said = Some(now);
        Some(std::mem::take(&mut self.number))
    }
}

fn work(service: &Service, waiting: &Mutex<Receiver<Connection>>, closing: &SyncSender<OwnedFd>, freed: &Sender<()>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((connection, number)) = next else { return };
        if let Err(why) = converse(service, &connection, number) {
            log::warning!("a connection is closed connection={number} why={why}");
        }
        // This comes first because the client may connect again as soon as it sees the end.
        let _ = freed.send(());
        close(connection, closing);
    }
}

/// Ends a connection. Descriptors sent over it but not received are closed with it, and their sender decides how long
/// that takes: one thread does nothing else.
fn close(connection: OwnedFd, closing: &SyncSender<OwnedFd>) {
    // This fails when the client has gone.
    let _ = socket::shut_down(&connection);
    if closing.try_send(connection).is_err() {
        // When a process exits, the kernel does not wait for any descriptor.
        log::last_words(
            "the helper exits: hundreds of connections cannot be closed, because descriptors were sent over them",
        );
        std::process::exit(1);
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
        let (response, descriptor): (Response, _) =
            outcome.map_or_else(|error| (Err(error), None), |(reply, passed)| (Ok(reply), passed));
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
        let packet = match socket::brings_descriptors(connection) {
            Ok(true) => return Err("it sent a file descriptor, which no request carries".to_owned()),
            Ok(false) => socket::receive(connection, buffer),
            Err(errno) => Err(errno),
        };
        match packet {
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

    #[test]
    fn refused_connections_are_logged_once_a_second() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        let after = |milliseconds| now + Duration::from_millis(milliseconds);
        let said: Vec<_> = [0, 1, 999, 1000, 1001, 5000].map(|time| refusals.due(after(time))).into();
        assert_eq!(said, [Some(1), None, None, Some(3), None, Some(2)]);
    }

    #[test]
    fn there_are_threads_for_others_when_every_pool_hangs() {
        assert_eq!([0, 1, 2].map(connections_for), [17, 33, 49]);
    }
}
