//! Step 6 of the helper's life: the second process, which empties deleted volumes.

use std::os::fd::{AsFd, OwnedFd};

use crate::emptier;
use crate::log;
use crate::start::config::Config;
use crate::start::host::Host;
use crate::start::jail::{self, Jail};
use crate::sys::{process, socket};

/// Forks the emptier, and answers the line to it.
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
        log::error!("the emptier ends complaint={complaint:?}");
    }
    std::process::exit(i32::from(result.is_err()));
}
