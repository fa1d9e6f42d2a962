//! Step 5 of the helper's life: a second process for each pool, which empties deleted volumes, and a third one where
//! filesystems in images are to be mounted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::config::Config;
use super::directory::Directory;
use super::filter::{self, Process};
use super::jail::{Jail, JailedPool};
use super::landlock;
use super::pool::Candidate;
use super::privileges;
use super::recover::SplitPool;
use super::refusal::Refusal;
use crate::state::{Mounting, PoolConfig};
use crate::sys::{process, socket};
use crate::{emptier, log, mounter};

/// Forks an emptier for each pool that is to be served, and a mounter if the pool is configured for filesystems in images.
///
/// # Errors
/// A sentence on what failed.
pub fn split(
    config: &Config,
    jail: &mut Jail,
    pools: Vec<Candidate<JailedPool>>,
) -> Result<Vec<Candidate<SplitPool>>, Refusal> {
    let mut split = Vec::new();
    for pool in pools {
        let place = jail.mounting.remove(&pool.config.name);
        let of_jailed = |jailed: &JailedPool| {
            let emptier = fork("emptier", |line| live_as_emptier(config, jail, &jailed.host.directory, line))?;
            let mounter = |place| {
                let line = fork("mounter", |line| live_as_mounter(config, &pool.config, line))?;
                Ok::<_, Refusal>(Mounting::new(line, place))
            };
            Ok::<_, Refusal>((emptier, place.map(mounter).transpose()?))
        };
        let others = pool.state.as_ref().ok().map(of_jailed).transpose()?;
        split.push(pool.then(|_, jailed| {
            let (emptier, mounting) = others.ok_or_else(|| "it has no emptier".to_owned())?;
            Ok((jailed, emptier, mounting))
        }));
    }
    Ok(split)
}

/// Forks a process of this name that does `live`, and returns the connection to it.
fn fork(name: &str, live: impl FnOnce(&OwnedFd) -> Result<(), Refusal>) -> Result<OwnedFd, Refusal> {
    let (line, other) =
        socket::pair().map_err(|error| format!("cannot create the socket pair for the {name}: {error}"))?;
    if !process::fork().map_err(|error| format!("cannot fork the {name}: {error}"))? {
        return Ok(line);
    }
    let result = live(&other);
    // The server ends with it, even if nobody reads its last words.
    drop(other);
    if let Err(complaint) = &result {
        log::error!("the {name} of a pool stops complaint={:?}", complaint.to_string());
    }
    std::process::exit(i32::from(result.is_err()));
}

fn live_as_emptier(config: &Config, jail: &Jail, pool: &Directory, server: &OwnedFd) -> Result<(), Refusal> {
    let pool =
        jail.narrow_to(pool).map_err(|error| format!("cannot leave the other directories of the jail: {error}"))?;
    keep_only(&[pool.as_fd(), server.as_fd()])?;
    privileges::drop_all_but(privileges::EMPTIER)?;
    landlock::confine(Process::Emptier, Some(&pool))?;
    filter::install(Process::Emptier, config.on_violation)?;
    Ok(emptier::run(server, &pool)?)
}

fn live_as_mounter(config: &Config, pool: &PoolConfig, server: &OwnedFd) -> Result<(), Refusal> {
    Jail::enter_place_of(pool).map_err(|error| format!("cannot leave the jail for the mounter's own: {error}"))?;
    keep_only(&[server.as_fd()])?;
    process::leave_children().map_err(|error| format!("cannot leave the mounter's children alone: {error}"))?;
    privileges::become_user(config.mounter_uid)?;
    privileges::drop_all_but(privileges::MOUNTER)?;
    landlock::confine(Process::Mounter, None)?;
    filter::install(Process::Mounter, config.on_violation)?;
    Ok(mounter::run(server)?)
}

/// Closes what this process has inherited. What is closed here still has owners in its copy of the memory; it ends without
/// returning to them.
fn keep_only(keep: &[BorrowedFd<'_>]) -> Result<(), Refusal> {
    Ok(socket::close_all_but(keep).map_err(|error| format!("cannot close the other descriptors: {error}"))?)
}
