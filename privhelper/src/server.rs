//! Connections: a fixed number of threads, each accepting one connection at a time and serving it, one request after
//! another.
//!
//! A client that breaks the protocol gets no answer: its connection is closed. An operation that fails is answered with
//! a typed error.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_protocol::{
    Error, Hello, MAX_PACKET, Request, Response, Welcome, decode, decode_request, encode, negotiate,
};

use crate::audit::{self, Client};
use crate::bookkeeping::is_held_up;
use crate::dispatch::{Answer, dispatch};
use crate::log;
use crate::state::{KEEPERS, MOST_ON_A_FILESYSTEM, Pool, Served, State, busy, invalid};
use crate::sys::packet::Received;
use crate::sys::socket;
use crate::sys::{Errno, Error as SysError, packet, process};
use crate::threads;

/// How many connections are served at once, one thread each, besides those whose operations may hang on a pool's
/// filesystem. A frontend opens up to 16, not counting those that hang; one more is for a health check.
const CONNECTIONS: usize = 17;
/// How many connections may wait to be closed.
const MOST_CLOSING: usize = 256;
/// How long a client may take to send its hello, and leave a reply unread.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often what is charged to no volume is looked for.
const STRAYS_INTERVAL: Duration = Duration::from_secs(60);
/// How many descriptors a thread may have open at once, and the process besides.
const DESCRIPTORS: (u64, u64) = (16, 128);

/// What all connections share.
#[derive(Debug)]
pub struct Service {
    /// What the operations work on.
    pub state: State,
    welcome: Welcome,
    allowed_uid: u32,
    listener: OwnedFd,
    counts: Counts,
}

/// Returns what serves connections: the only user that may connect, the answer to a hello with the highest version,
/// what operations work on, and where the frontend connects.
///
/// # Errors
/// A sentence when it is not such a socket, or descriptors could be sent over connections to it.
pub fn service(allowed_uid: u32, welcome: Welcome, state: State, listener: OwnedFd) -> Result<Service, String> {
    if !socket::is_packet_listener(&listener) {
        return Err(
            "the socket that systemd passes is not a listening SOCK_SEQPACKET Unix socket: use ListenSequentialPacket="
                .to_owned(),
        );
    }
    match socket::refuse_descriptors(&listener) {
        Ok(()) | Err(SysError { errno: Errno::NOPROTOOPT, .. }) => {
            Ok(Service { state, welcome, allowed_uid, listener, counts: Counts::default() })
        }
        Err(error) => Err(format!("cannot refuse descriptors on the helper's socket: {error}")),
    }
}

/// How connections stand.
#[derive(Debug, Default)]
struct Counts {
    accepted: AtomicU64,
    serving: AtomicUsize,
    /// How many requests are being carried out.
    requests: AtomicUsize,
    /// Whether no more requests are carried out.
    ending: AtomicBool,
    refusals: Mutex<Refusals>,
}

/// Returns how many connections are served at once: however many pools hang, [`CONNECTIONS`] others are.
const fn connections_for(pools: usize) -> usize {
    MOST_ON_A_FILESYSTEM.saturating_mul(pools).saturating_add(CONNECTIONS)
}

/// Returns how many descriptors a helper with that many pools may need.
fn descriptors_for(pools: usize) -> u64 {
    let (per_thread, besides) = DESCRIPTORS;
    let by_threads = (connections_for(pools) as u64).saturating_add(pools as u64).saturating_mul(per_thread);
    by_threads.saturating_add(lines_for(pools) as u64).saturating_add(besides)
}

/// Allows the process as many descriptors as it may have, so that none fails for want of one, and none cannot be passed on
/// because others of the same user have many in flight.
///
/// # Errors
/// A sentence when it may not have so many.
pub fn allow_descriptors(pools: usize) -> Result<(), String> {
    let number = descriptors_for(pools);
    let allowed = process::allow_descriptors(number);
    allowed.map_err(|error| format!("the limit of open files must be at least {number} (LimitNOFILE=): {error}"))
}

/// Starts the threads, and returns the gate before which each waits: before it is opened, nothing is accepted.
///
/// # Errors
/// A sentence when one cannot be started.
pub fn start(service: &Arc<Service>) -> Result<Arc<Barrier>, String> {
    let mut threads: Vec<threads::Work> = Vec::new();
    let (closing, closed) = sync_channel::<OwnedFd>(MOST_CLOSING);
    threads.push(Box::new(move || closed.into_iter().for_each(drop)));
    for _ in 0..KEEPERS {
        let own = Arc::clone(service);
        threads.push(Box::new(move || own.state.loops.keep_stock()));
    }
    for pool in service.state.pools.iter().filter(|pool| pool.state.is_ok()) {
        for work in [finish_deletions, look_for_strays] {
            let (own, pool) = (Arc::clone(service), Arc::clone(pool));
            threads.push(Box::new(move || work(&own.state, &pool)));
        }
    }
    // One more than are served at once: the last one that is free turns connections away.
    for _ in 0..=connections_for(service.state.pools.len()) {
        let (own, closing) = (Arc::clone(service), closing.clone());
        threads.push(Box::new(move || work(&own, &closing)));
    }
    threads::start(threads)
}

/// Returns how many lines to the placer there must be: one for each thread that may ask it for something, and for those of
/// the start.
pub fn lines_for(pools: usize) -> usize {
    connections_for(pools).saturating_add(pools.saturating_mul(2)).saturating_add(KEEPERS).saturating_add(4)
}

/// Accepts connections and serves them, forever.
fn work(service: &Service, closing: &SyncSender<OwnedFd>) {
    let counts = &service.counts;
    let most = connections_for(service.state.pools.len());
    loop {
        let connection = match socket::accept(&service.listener) {
            Ok(connection) => connection,
            Err(SysError { errno: Errno::INTR | Errno::CONNABORTED, .. }) => continue,
            Err(SysError { errno: Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM, .. }) => {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            Err(error) => end(&format!("cannot accept connections error={error}")),
        };
        let others = counts.serving.fetch_add(1, SeqCst);
        match refusal(service, &connection, others >= most) {
            None => {
                let number = counts.accepted.fetch_add(1, SeqCst).saturating_add(1);
                if let Err(why) = converse(service, &connection, number) {
                    log::warning!("a connection is closed connection={number} why={why}");
                }
            }
            Some(why) => counts.refuse(&why),
        }
        // This comes first because the client may connect again as soon as it sees the end.
        counts.serving.fetch_sub(1, SeqCst);
        close(connection, closing);
    }
}

/// Returns why a connection is not served, if it is not.
fn refusal(service: &Service, connection: &OwnedFd, full: bool) -> Option<String> {
    match socket::peer(connection) {
        Ok(peer) if peer.uid != service.allowed_uid => {
            Some(format!("not of --allow-uid {} uid={} pid={}", service.allowed_uid, peer.uid, peer.pid))
        }
        Ok(_) => full.then(|| "beyond the number served at once".to_owned()),
        Err(error) => Some(format!("of an unknown user error={error}")),
    }
}

/// Connections that were refused. Anybody who can connect could fill the log with them.
#[derive(Debug, Default)]
struct Refusals {
    number: u64,
    reported: Option<Instant>,
}

impl Refusals {
    /// Counts one, and returns their number since the last line if a second has passed.
    fn due(&mut self, now: Instant) -> Option<u64> {
        self.number = self.number.saturating_add(1);
        if self.reported.is_some_and(|last| now.saturating_duration_since(last) < Duration::from_secs(1)) {
            return None;
        }
        self.reported = Some(now);
        Some(std::mem::take(&mut self.number))
    }
}

impl Counts {
    fn refuse(&self, why: &str) {
        let due = self.refusals.lock().unwrap_or_else(PoisonError::into_inner).due(Instant::now());
        if let Some(number) = due {
            log::warning!("connections are closed: {number} since the last such line, this one {why}");
        }
    }
}

impl Service {
    /// Stops carrying out requests, waits for those in progress, and logs why. One may hang forever, so the wait is
    /// limited: `false` if the helper has to go on for now.
    pub fn end_in_order(&self, why: &str) -> bool {
        self.counts.ending.store(true, SeqCst);
        for _ in 0..110 {
            if self.counts.requests.load(SeqCst) == 0 && !is_held_up(&self.state) {
                log::last_words(why);
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        self.counts.ending.store(false, SeqCst);
        false
    }
}

/// Ends a connection. Descriptors sent over it but not received are closed with it, and their sender decides how long
/// that takes: one thread does nothing else.
fn close(connection: OwnedFd, closing: &SyncSender<OwnedFd>) {
    // This fails when the client has gone.
    let _ = socket::shut_down(&connection);
    let (begun, mut unsent) = (Instant::now(), closing.try_send(connection));
    // After a burst, that thread may only have had no processor.
    while let Err(TrySendError::Full(connection) | TrySendError::Disconnected(connection)) = unsent {
        if begun.elapsed() > PATIENCE {
            // When a process exits, the kernel does not wait for any descriptor.
            end("hundreds of connections cannot be closed, because descriptors were sent over them");
        }
        std::thread::sleep(Duration::from_millis(10));
        unsent = closing.try_send(connection);
    }
}

/// Ends the process because of a failure.
fn end(why: &str) -> ! {
    log::last_words(&format!("the helper exits: {why}"));
    std::process::exit(1);
}

fn finish_deletions(state: &State, pool: &Arc<Pool>) {
    let Some(deletions) = state.deletions.get(&pool.config.name) else { return };
    if let Err(error) = deletions.finish(pool) {
        end(&format!("it cannot go on without the emptier error={error}"));
    }
}

fn look_for_strays(state: &State, pool: &Arc<Pool>) {
    let (Ok(Served { filesystem, .. }), true) = (&pool.state, pool.has_quotas()) else { return };
    loop {
        filesystem.look_for_strays(&state.volumes, pool);
        std::thread::sleep(STRAYS_INTERVAL);
    }
}

/// Serves one connection, from its hello to its end.
fn converse(service: &Service, connection: &OwnedFd, number: u64) -> Result<(), String> {
    let say = |error: SysError| error.to_string();
    let pid = socket::peer(connection).map_err(say)?.pid;
    let mut buffer = [0; MAX_PACKET];
    packet::set_timeout(connection, packet::Timeout::Send, Some(PATIENCE)).map_err(say)?;
    packet::set_timeout(connection, packet::Timeout::Recv, Some(PATIENCE)).map_err(say)?;
    let Some(packet) = receive(connection, &mut buffer)? else { return Ok(()) };
    let hello: Hello = decode(packet).map_err(|error| format!("hello: {error}"))?;
    let agreed = negotiate(hello);
    let welcome = agreed.clone().map(|version| Welcome { version, ..service.welcome.clone() });
    send(connection, &welcome, None)?;
    let version = agreed.map_err(|error| error.to_string())?;
    log::info!("a frontend is connected connection={number} pid={pid} version={version}");
    packet::set_timeout(connection, packet::Timeout::Recv, None).map_err(say)?;
    while let Some(packet) = receive(connection, &mut buffer)? {
        let (request, call) = decode_request(packet, version).map_err(|error| format!("request: {error}"))?;
        let client = Client { connection: number, pid, call };
        service.counts.requests.fetch_add(1, SeqCst);
        let outcome = carry_out(service, connection, &request, version, client);
        service.counts.requests.fetch_sub(1, SeqCst);
        let (response, descriptor): (Response, _) =
            outcome.map_or_else(|error| (Err(error), None), |(reply, passed)| (reply.at_version(version), passed));
        send(connection, &response, descriptor)?;
    }
    Ok(())
}

/// Carries out a request, which has its place in the log before it changes anything.
fn carry_out(service: &Service, connection: &OwnedFd, request: &Request, version: u16, client: Client) -> Answer {
    let begun = Instant::now();
    let (slot, outcome) = match audit::reserve(request) {
        Err(error) => (None, Err(error)),
        Ok(slot) if service.counts.ending.load(SeqCst) => {
            (slot, Err(busy(format!("{}: the helper is about to start anew; try again", request.name()))))
        }
        Ok(slot) => {
            let dispatch = |()| dispatch(&service.state, connection, request, client.call);
            (slot, check_version(request, version).and_then(dispatch))
        }
    };
    audit::record(slot, request, client, outcome.as_ref().err(), begun.elapsed().as_micros());
    outcome
}

/// Refuses a request that is newer than the version in use, which a client must not send.
fn check_version(request: &Request, in_use: u16) -> Result<(), Error> {
    let (name, needed) = (request.name(), request.since_version());
    if needed <= in_use {
        return Ok(());
    }
    Err(invalid(format!(
        "request {name} needs protocol version {needed}, but this connection uses version {in_use}; connect again with a Hello of version {needed} or later"
    )))
}

/// The next packet; `None` at the end of the connection.
fn receive<'a>(connection: &OwnedFd, buffer: &'a mut [u8]) -> Result<Option<&'a [u8]>, String> {
    loop {
        let packet = match socket::brings_descriptors(connection) {
            Ok(true) => return Err("it sent a file descriptor, which no request carries".to_owned()),
            Ok(false) => packet::receive(connection, buffer),
            Err(error) => Err(error),
        };
        match packet {
            Ok(Received::Packet(length)) => return Ok(buffer.get(..length)),
            Ok(Received::Closed) | Err(SysError { errno: Errno::CONNRESET, .. }) => return Ok(None),
            Ok(Received::Truncated) => return Err("a packet is longer than 4096 bytes".to_owned()),
            Err(SysError { errno: Errno::INTR, .. }) => {}
            Err(SysError { errno: Errno::AGAIN, .. }) => return Err("it sent nothing for five seconds".to_owned()),
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn send(connection: &OwnedFd, value: &impl serde::Serialize, descriptor: Option<OwnedFd>) -> Result<(), String> {
    let packet = encode(value).map_err(|error| format!("reply: {error}"))?;
    // What all processes of the same user have in flight counts (unix(7)): hence the limit of open files.
    let sent = packet::send(connection, &packet, descriptor.as_ref().map(AsFd::as_fd));
    sent.map_err(|error| format!("reply: {error}"))
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::ErrorKind;

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
        assert_eq!([0, 1, 2].map(connections_for), [17, 74, 131]);
    }
}
