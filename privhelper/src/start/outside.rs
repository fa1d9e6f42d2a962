//! What the helper gets from outside: the socket at which the frontend connects, and the service manager's.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::net::SocketType;

use super::config::Config;
use crate::log;
use crate::sys::{Errno, file, socket};

/// The only two descriptors that come from outside or lead there: where the frontend connects, and where the service
/// manager waits for the message that the helper is ready.
#[derive(Debug)]
pub struct Outside {
    /// The listening socket.
    pub listener: OwnedFd,
    service_manager: Option<OwnedFd>,
}

/// Takes the socket that systemd passes, or makes the helper's own; closes every other descriptor.
///
/// # Errors
/// A sentence on what is wrong with the socket.
pub fn take(config: &Config) -> Result<Outside, String> {
    // Everything that is made gets exactly the mode that is asked for.
    rustix::process::umask(Mode::empty());
    let passed = take_passed()?;
    socket::close_all_but(&passed.iter().map(AsFd::as_fd).collect::<Vec<_>>())
        .map_err(|errno| format!("cannot close the descriptors inherited at start: {errno}"))?;
    let null = file::open_at_start("/dev/null", OFlags::RDWR);
    null.and_then(rustix::stdio::dup2_stdin).map_err(|errno| format!("cannot open /dev/null: {errno}"))?;
    let listener = match (passed, &config.socket) {
        (Some(passed), _) => passed,
        (None, Some(path)) => listen(path, config.allowed_uid)
            .map_err(|errno| format!("cannot create the socket {}: {errno}", path.display()))?,
        (None, None) => return Err("no socket to listen on: give --socket, or have systemd pass one".to_owned()),
    };
    Ok(Outside { listener, service_manager: connect_service_manager() })
}

impl Outside {
    /// Tells systemd that requests are served.
    pub fn ready(&mut self) {
        if let Some(manager) = self.service_manager.take()
            && let Err(errno) = socket::send(&manager, b"READY=1\nSTATUS=Serving requests", None)
        {
            log::warning!("cannot notify systemd that the helper is ready errno={errno}");
        }
        log::info!("serving requests");
    }
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

fn listen(path: &Path, uid: u32) -> Result<OwnedFd, Errno> {
    let name = path.file_name().and_then(|name| name.to_str()).ok_or(Errno::INVAL)?;
    let parent = file::open_at_start(path.parent().ok_or(Errno::INVAL)?, OFlags::PATH | OFlags::DIRECTORY)?;
    socket::listen(&parent, name, SocketType::SEQPACKET, Some(uid))
}

fn connect_service_manager() -> Option<OwnedFd> {
    let path = std::env::var("NOTIFY_SOCKET").ok()?;
    let connected = socket::connect_datagram(&path);
    connected.inspect_err(|errno| log::warning!("cannot connect to NOTIFY_SOCKET errno={errno}")).ok()
}
