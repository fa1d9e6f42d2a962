//! Step 5 of the helper's life: a second process for each pool, which empties deleted volumes.

use std::os::fd::{AsFd, OwnedFd};

use super::config::Config;
use super::directory::Directory;
use super::filter::{self, Process};
use super::jail::{Jail, JailedPool};
use super::landlock;
use super::pool::Candidate;
use super::privileges;
use super::recover::SplitPool;
use crate::sys::{Errno, process, socket};
use crate::{emptier, log};

/// Forks an emptier for each pool that is to be served.
///
/// # Errors
/// A sentence on what failed.
pub fn split(
    config: &Config,
    jail: &Jail,
    pools: Vec<Candidate<JailedPool>>,
) -> Result<Vec<Candidate<SplitPool>>, String> {
    let mut split = Vec::new();
    for pool in pools {
        let emptier = pool.state.as_ref().ok().map(|pool| fork(config, jail, &pool.host.directory)).transpose()?;
        split.push(pool.then(|_, jailed| Ok((jailed, emptier.ok_or("it has no emptier")?))));
    }
    Ok(split)
}

/// Forks an emptier for a pool, and returns the connection to it.
fn fork(config: &Config, jail: &Jail, pool: &Directory) -> Result<OwnedFd, String> {
    let (line, other) =
        socket::pair().map_err(|errno| format!("cannot create the socket pair for an emptier: {errno}"))?;
    match process::fork() {
        Ok(false) => return Ok(line),
        Ok(true) => {}
        // This is the child. Its parent has exited and has said why.
        Err(Errno::SRCH) => std::process::exit(1),
        Err(errno) => return Err(format!("cannot fork an emptier: {errno}")),
    }
    let result = live_as_emptier(config, jail, pool, &other);
    // The server ends with its emptier, even if nobody reads the emptier's last words.
    drop(other);
    if let Err(complaint) = &result {
        log::error!("an emptier stops complaint={complaint:?}");
    }
    std::process::exit(i32::from(result.is_err()));
}

fn live_as_emptier(config: &Config, jail: &Jail, pool: &Directory, server: &OwnedFd) -> Result<(), String> {
    let pool =
        jail.narrow_to(pool).map_err(|errno| format!("cannot leave the other directories of the jail: {errno}"))?;
    // What is closed here still has owners in this copy of the memory; the process ends without returning to them.
    socket::close_all_but(&[pool.as_fd(), server.as_fd()])
        .map_err(|errno| format!("cannot close the other descriptors: {errno}"))?;
    privileges::drop_all_but(privileges::EMPTIER)?;
    landlock::confine_to(&pool)?;
    filter::install(Process::Emptier, config.on_violation)?;
    emptier::run(server, &pool)
}
