//! What the helper gets from outside: the socket to which the frontend connects, and the service manager's.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::SocketType;

use super::config::Config;
use super::directory;
use super::ready::ServiceManager;
use super::refusal::{Refusal, Why};
use crate::log::{self, shown};
use crate::sys::{Called, Errno, Error as SysError, file, socket, walk};

/// Where the frontend connects.
#[derive(Debug)]
pub enum Listener {
    /// The socket that systemd has passed.
    Passed(OwnedFd),
    /// The path of a socket that is yet to be made, the directory that is to hold it, and the lock beside it.
    Own(PathBuf, OwnedFd, OwnedFd),
}

/// Takes what the service manager passes; closes every other descriptor.
///
/// # Errors
/// A sentence on what is wrong with the socket.
pub fn take(config: &Config) -> Result<(Listener, ServiceManager), Refusal> {
    // Everything that is created gets exactly the mode that is asked for.
    rustix::process::umask(Mode::empty());
    let passed = take_passed()?;
    socket::close_all_but(&passed.iter().map(AsFd::as_fd).collect::<Vec<_>>())
        .map_err(|error| format!("cannot close the descriptors inherited at start: {error}"))?;
    let null = walk::open_at_start("/dev/null", OFlags::RDWR);
    null.and_then(|null| rustix::stdio::dup2_stdin(null).by("dup2"))
        .map_err(|error| format!("cannot open /dev/null: {error}"))?;
    let listener = match (passed, &config.socket) {
        (Some(passed), _) => Listener::Passed(passed),
        (None, Some(path)) => {
            let directory = path.parent().ok_or(SysError::of(Errno::INVAL)).and_then(directory::open);
            let directory = directory.map_err(|error| cannot_create(path, error))?;
            let lock = take_lock(path, &directory)?;
            Listener::Own(path.clone(), directory, lock)
        }
        (None, None) => return Err(Why::Configuration.because(NO_SOCKET)),
    };
    Ok((listener, ServiceManager(connect_service_manager())))
}

const NO_SOCKET: &str = "no socket to listen on: give --socket, or have systemd pass one";

impl Listener {
    /// The listening socket, and the lock beside it. The helper's own replaces an older one, so it is made late, when it
    /// is certain that no other helper serves the pools.
    ///
    /// # Errors
    /// A sentence when it cannot be made.
    pub fn listen(self, config: &Config) -> Result<(OwnedFd, Option<OwnedFd>), Refusal> {
        match self {
            Self::Passed(socket) => Ok((socket, None)),
            Self::Own(path, directory, lock) => {
                let name = path.file_name().and_then(|name| name.to_str()).ok_or(SysError::of(Errno::INVAL));
                let socket = name
                    .and_then(|name| socket::listen(&directory, name, SocketType::SEQPACKET, Some(config.allowed_uid)));
                Ok((socket.map_err(|error| cannot_create(&path, error))?, Some(lock)))
            }
        }
    }
}

fn cannot_create(socket: &Path, error: SysError) -> String {
    format!("cannot create the socket {}: {error}", shown(socket))
}

/// Takes the lock beside a socket, so that no other helper takes the socket's name.
fn take_lock(socket: &Path, directory: &OwnedFd) -> Result<OwnedFd, Refusal> {
    let name = format!("{}.lock", socket.file_name().unwrap_or_default().to_string_lossy());
    let lock = match file::create(directory, &name, Mode::RUSR | Mode::WUSR) {
        Err(SysError { errno: Errno::EXIST, .. }) => file::open(directory, &*name, OFlags::RDONLY),
        made => made,
    };
    match lock.and_then(|lock| walk::lock(&lock).map(|()| lock)) {
        Err(SysError { errno: Errno::AGAIN, .. }) => Err(Why::InUse.because(format!(
            "another helper listens on {}; stop it first, or give this one another --socket",
            shown(socket)
        ))),
        lock => lock.map_err(|error| format!("cannot lock {}.lock: {error}", shown(socket)).into()),
    }
}

/// The socket that systemd passes, if it passes one (sd_listen_fds(3)).
fn take_passed() -> Result<Option<OwnedFd>, Refusal> {
    let own = rustix::process::getpid().as_raw_nonzero().to_string();
    if std::env::var("LISTEN_PID").ok().is_none_or(|pid| pid != own) {
        return Ok(None);
    }
    if std::env::var("LISTEN_FDS").as_deref() != Ok("1") {
        return Err(Why::Configuration.because("systemd must pass exactly one socket (LISTEN_FDS)"));
    }
    let passed = socket::passed_by_service_manager().map(Some);
    passed.map_err(|error| format!("cannot use the socket that systemd passes: {error}").into())
}

fn connect_service_manager() -> Option<OwnedFd> {
    let path = std::env::var("NOTIFY_SOCKET").ok()?;
    let connected = socket::connect_datagram(&path);
    connected.inspect_err(|error| log::warning!("cannot connect to NOTIFY_SOCKET error={error}")).ok()
}
