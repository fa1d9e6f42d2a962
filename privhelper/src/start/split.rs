//! Step 6 of the helper's life: the second process, which empties deleted volumes.

use std::os::fd::{AsFd, OwnedFd};

use super::config::Config;
use super::filter::{self, Process};
use super::host::Host;
use super::jail;
use super::privileges;
use crate::sys::{Errno, process, socket};
use crate::{emptier, log};

/// Forks the emptier, and returns the line to it.
///
/// # Errors
/// A sentence on what failed.
pub fn split(config: &Config, host: &Host) -> Result<OwnedFd, String> {
    let (line, other) =
        socket::pair().map_err(|errno| format!("cannot create the socket pair for the emptier: {errno}"))?;
    match process::fork() {
        Ok(false) => return Ok(line),
        Ok(true) => {}
        // This is the child. Its parent has ended and has said why.
        Err(Errno::SRCH) => std::process::exit(1),
        Err(errno) => return Err(format!("cannot fork the emptier: {errno}")),
    }
    let result = live_as_emptier(config, host, &other);
    // The server ends with its emptier, also if nobody reads what the emptier says at last.
    drop(other);
    if let Err(complaint) = &result {
        log::error!("the emptier stops complaint={complaint:?}");
    }
    std::process::exit(i32::from(result.is_err()));
}

fn live_as_emptier(config: &Config, host: &Host, server: &OwnedFd) -> Result<(), String> {
    let pools = jail::narrow_to_pools(host)
        .map_err(|errno| format!("cannot leave the other directories of the jail: {errno}"))?;
    let keep: Vec<_> = pools.iter().flatten().chain([server]).map(AsFd::as_fd).collect();
    // What is closed here still has owners in this copy of the memory; the process ends without coming back to them.
    socket::close_all_but(&keep).map_err(|errno| format!("cannot close the other descriptors: {errno}"))?;
    privileges::drop_all_but(privileges::EMPTIER)?;
    filter::install(Process::Emptier, config.on_violation)?;
    emptier::run(server, &pools)
}
