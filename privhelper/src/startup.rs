//! The steps of the helper's life that are no room of their own: what comes from outside, the split, the drop.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::ExitCode;

use bulkhead_protocol::{Pool, PublishDirectory, Text, UpTo, Welcome};
use rustix::fs::{Mode, OFlags};
use rustix::net::SocketType;

use crate::config::Config;
use crate::host::{self, Host};
use crate::jail::{self, Jail};
use crate::state::State;
use crate::sys::{Errno, capability, file, process, socket};
use crate::{KEPT, emptier};

/// The only two descriptors that come from outside or lead there: where the frontend connects, and where systemd is
/// told that the helper is ready.
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
pub fn take_outside(config: &Config) -> Result<Outside, String> {
    // Everything that is made gets the mode that is asked for.
    rustix::process::umask(Mode::empty());
    let passed = take_passed()?;
    socket::close_all_but(&passed.iter().map(AsFd::as_fd).collect::<Vec<_>>())
        .map_err(|errno| format!("cannot close what was open at start: {errno}"))?;
    let null = file::open_at_start("/dev/null", OFlags::RDWR);
    null.and_then(rustix::stdio::dup2_stdin).map_err(|errno| format!("cannot open /dev/null: {errno}"))?;
    let listener = match (passed, &config.socket) {
        (Some(passed), _) => passed,
        (None, Some(path)) => listen(path, config.allowed_uid)
            .map_err(|errno| format!("cannot make the socket {}: {errno}", path.display()))?,
        (None, None) => return Err("--socket is missing, and systemd passes no socket".to_owned()),
    };
    Ok(Outside { listener, service_manager: connect_service_manager() })
}

impl Outside {
    /// Tells systemd that requests are served.
    pub fn ready(&mut self) {
        if let Some(manager) = self.service_manager.take()
            && let Err(errno) = socket::send(&manager, b"READY=1\nSTATUS=Serving requests", None)
        {
            tracing::warn!(%errno, "systemd cannot be told that the helper is ready");
        }
        tracing::info!("requests are served");
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
    let passed =
        socket::passed_by_service_manager().map_err(|errno| format!("systemd's socket is not there: {errno}"))?;
    if !socket::is_packet_listener(&passed) {
        return Err(
            "systemd's socket is no listening SOCK_SEQPACKET unix socket: use ListenSequentialPacket=".to_owned()
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
    connected.inspect_err(|errno| tracing::warn!(%errno, "NOTIFY_SOCKET cannot be connected to")).ok()
}

/// Step 6: forks the emptier, and answers the line to it.
///
/// # Errors
/// A sentence on what failed.
pub fn split(config: &Config, host: &Host, jail: &Jail) -> Result<OwnedFd, String> {
    let (line, other) = socket::pair().map_err(|errno| format!("cannot make a line to the emptier: {errno}"))?;
    if !process::fork().map_err(|errno| format!("cannot fork the emptier: {errno}"))? {
        return Ok(line);
    }
    let run = || {
        let pools = jail::narrow_to_pools(config, host, jail)
            .map_err(|errno| format!("the emptier cannot leave the jail's other rooms: {errno}"))?;
        let keep: Vec<_> = pools.iter().flatten().chain([&other]).map(AsFd::as_fd).collect();
        // What is closed here still has owners in this copy of the memory; the process ends without coming back to them.
        socket::close_all_but(&keep)
            .map_err(|errno| format!("the emptier cannot close what it has no use for: {errno}"))?;
        emptier::run(&other, &pools, config.on_violation)
    };
    let result: Result<(), String> = run();
    if let Err(complaint) = &result {
        tracing::error!(?complaint, "the emptier ends");
    }
    std::process::exit(i32::from(result.is_err()));
}

/// Step 7: drops everything but [`KEPT`] for this thread and those it starts, and reads it back.
///
/// # Errors
/// A sentence on what could not be dropped, or is still there.
pub fn drop_privileges() -> Result<(), String> {
    capability::drop_all_but(&KEPT).map_err(|errno| format!("cannot drop privileges: {errno}"))?;
    verify()
}

/// Whether the calling thread has exactly what it is to have.
///
/// # Errors
/// A sentence on what differs.
pub fn verify() -> Result<(), String> {
    capability::verify_dropped(&KEPT)
        .map_err(|what| format!("refusing to serve: {what} are not as they must be after the drop"))
}

/// What every frontend is told first.
///
/// # Errors
/// A sentence, when names and paths are too long for one packet.
pub fn welcome(config: &Config, state: &State) -> Result<Welcome, String> {
    let publish: Vec<_> = state
        .publish
        .iter()
        .map(|directory| PublishDirectory { name: directory.name.clone(), host_path: directory.host_path.clone() })
        .collect();
    let pools: Vec<_> = config.pools.iter().map(|pool| Pool { name: pool.name.clone(), quota: pool.quota }).collect();
    let path = |path: &Option<std::path::PathBuf>| {
        path.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let welcome = Welcome {
        version: bulkhead_protocol::HIGHEST_VERSION,
        release: Text::new(env!("CARGO_PKG_VERSION")),
        driver: config.driver.clone(),
        csi_socket: Text::new(path(&config.csi_socket)),
        registers: config.registration_socket.is_some(),
        publish_directories: UpTo::try_from(publish).map_err(|error| format!("publish directories: {error}"))?,
        pools: UpTo::try_from(pools).map_err(|error| format!("pools: {error}"))?,
    };
    let long = state.publish.iter().find(|directory| directory.host_path.as_str().len() >= Text::MAX_LENGTH);
    let encoded = bulkhead_protocol::encode(&Ok::<_, bulkhead_protocol::Error>(&welcome));
    if long.is_some() || encoded.is_err() {
        return Err(
            "the names and paths of pools and publish directories are too long for one packet; shorten them".to_owned()
        );
    }
    Ok(welcome)
}

/// `--check`: one line for each thing that must be right. Changes nothing but a trial mount that is gone at the end.
pub fn check(config: &Config) -> ExitCode {
    let mut good = true;
    let mut say = |what: String, result: Result<(), String>| {
        match &result {
            Ok(()) => println!("ok      {what}"),
            Err(complaint) => println!("FAILED  {what}: {complaint}"),
        }
        good &= result.is_ok();
    };
    say("kernel".to_owned(), host::check_kernel());
    say("capabilities".to_owned(), check_capabilities());
    match host::inspect(config, false) {
        Ok(host) => {
            say("loop devices".to_owned(), Ok(()));
            for (pool, found) in config.pools.iter().zip(&host.pools) {
                say(
                    format!("pool {} in {}", pool.name, pool.directory.display()),
                    found.as_ref().map(|_| ()).map_err(Clone::clone),
                );
                for warning in found.iter().flat_map(|found| &found.warnings) {
                    println!("note    pool {}: {warning}", pool.name);
                }
            }
            let proved = jail::enter(config, &host).and_then(|jail| jail::prove(&host, &jail));
            say("jail, and mounts that reach the host".to_owned(), proved);
        }
        Err(complaint) => say("publish directories and sockets".to_owned(), Err(complaint)),
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn check_capabilities() -> Result<(), String> {
    use caps::{CapSet, Capability};
    let permitted = caps::read(None, CapSet::Permitted).map_err(|error| error.to_string())?;
    let needed = KEPT.iter().chain(&emptier::KEPT).chain([&Capability::CAP_SETPCAP, &Capability::CAP_CHOWN]);
    let missing: Vec<_> =
        needed.filter(|capability| !permitted.contains(capability)).map(Capability::to_string).collect();
    if missing.is_empty() { Ok(()) } else { Err(format!("{} missing; run it as root with these", missing.join(", "))) }
}
