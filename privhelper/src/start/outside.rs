//! What the helper gets from outside: the socket to which the frontend connects, and the service manager's.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::SocketType;

use super::config::Config;
use super::directory;
use crate::log;
use crate::sys::{Errno, file, socket};

/// Where the frontend connects.
#[derive(Debug)]
pub enum Listener {
    /// The socket that systemd has passed.
    Passed(OwnedFd),
    /// The path of a socket that is yet to be made, and the directory that is to hold it.
    Own(PathBuf, OwnedFd),
}

/// Where the service manager waits to be told that the helper is ready, if it does.
#[derive(Debug)]
pub struct ServiceManager(Option<OwnedFd>);

/// Takes what the service manager passes; closes every other descriptor.
///
/// # Errors
/// A sentence on what is wrong with the socket.
pub fn take(config: &Config) -> Result<(Listener, ServiceManager), String> {
    // Everything that is created gets exactly the mode that is asked for.
    rustix::process::umask(Mode::empty());
    let passed = take_passed()?;
    socket::close_all_but(&passed.iter().map(AsFd::as_fd).collect::<Vec<_>>())
        .map_err(|errno| format!("cannot close the descriptors inherited at start: {errno}"))?;
    let null = file::open_at_start("/dev/null", OFlags::RDWR);
    null.and_then(rustix::stdio::dup2_stdin).map_err(|errno| format!("cannot open /dev/null: {errno}"))?;
    let listener = match (passed, &config.socket) {
        (Some(passed), _) => Listener::Passed(passed),
        (None, Some(path)) => {
            let directory = path.parent().ok_or(Errno::INVAL).and_then(directory::open);
            Listener::Own(path.clone(), directory.map_err(|errno| cannot_create(path, errno))?)
        }
        (None, None) => return Err("no socket to listen on: give --socket, or have systemd pass one".to_owned()),
    };
    Ok((listener, ServiceManager(connect_service_manager())))
}

impl Listener {
    /// The listening socket. The helper's own replaces an older one, so it is made last, when it is certain that no
    /// other helper serves the pools.
    ///
    /// # Errors
    /// A sentence when it cannot be made.
    pub fn listen(self, config: &Config) -> Result<OwnedFd, String> {
        let socket = match self {
            Self::Passed(socket) => socket,
            Self::Own(path, directory) => {
                let name = path.file_name().and_then(|name| name.to_str()).ok_or(Errno::INVAL);
                name.and_then(|name| socket::listen(&directory, name, SocketType::SEQPACKET, Some(config.allowed_uid)))
                    .map_err(|errno| cannot_create(&path, errno))?
            }
        };
        match socket::refuse_descriptors(&socket) {
            Ok(()) | Err(Errno::NOPROTOOPT) => Ok(socket),
            Err(errno) => Err(format!("cannot refuse descriptors on the helper's socket: {errno}")),
        }
    }
}

impl ServiceManager {
    /// Tells systemd that requests are served.
    pub fn ready(self) {
        if let Some(manager) = self.0
            && let Err(errno) = socket::send(&manager, b"READY=1\nSTATUS=Serving requests", None)
        {
            log::warning!("cannot notify systemd that the helper is ready errno={errno}");
        }
        log::info!("serving requests");
    }
}

fn cannot_create(socket: &Path, errno: Errno) -> String {
    format!("cannot create the socket {}: {errno}", socket.display())
}

/// The socket that systemd passes, if it passes one (sd_listen_fds(3)).
fn take_passed() -> Result<Option<OwnedFd>, String> {
    let own = rustix::process::getpid().as_raw_nonzero().to_string();
    if std::env::var("LISTEN_PID").ok().is_none_or(|pid| pid != own) {
        return Ok(None);
    }
    if std::env::var("LISTEN_FDS").as_deref() != Ok("1") {
        return Err("systemd must pass exactly one socket (LISTEN_FDS)".to_owned());
    }
    let passed = socket::passed_by_service_manager()
        .map_err(|errno| format!("cannot use the socket that systemd passes: {errno}"))?;
    if !socket::is_packet_listener(&passed) {
        return Err(
            "the socket that systemd passes is not a listening SOCK_SEQPACKET Unix socket: use ListenSequentialPacket="
                .to_owned(),
        );
    }
    Ok(Some(passed))
}

fn connect_service_manager() -> Option<OwnedFd> {
    let path = std::env::var("NOTIFY_SOCKET").ok()?;
    let connected = socket::connect_datagram(&path);
    connected.inspect_err(|errno| log::warning!("cannot connect to NOTIFY_SOCKET errno={errno}")).ok()
}
