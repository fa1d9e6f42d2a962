//! A pool on its way through the start.

use std::os::fd::OwnedFd;
use std::path::Path;

use bulkhead_protocol::VolumeId;
use rustix::fs::OFlags;

use super::directory::{Directory, Role, check_owner};
use super::filter::OnViolation;
use super::judge::{Fit, Said, judge};
use super::mounts::Mounts;
use super::patience::{self, Needs};
use super::privileges;
use super::refusal::{Refusal, Why};
use crate::capabilities::CHILD;
use crate::log::shown;
use crate::state::PoolConfig;
use crate::sys::{Result as SysResult, capability, file, walk};

/// A configured pool, and what is known of it so far, or why it is not to be served.
#[derive(Debug)]
pub struct Candidate<T> {
    /// As configured.
    pub config: PoolConfig,
    /// What is known of it.
    pub state: Result<T, Refusal>,
    /// The volumes in a directory that is not to be served, as far as it could be read.
    pub volumes: Vec<VolumeId>,
    /// The uuid in its marker, as far as that could be read.
    pub uuid: Option<String>,
    /// The connection to a process that waits for its filesystem to answer, or for another helper to release it.
    pub waiting: Option<OwnedFd>,
}

/// A directory that is fit to be a pool.
#[derive(Debug)]
pub struct HostPool {
    /// The directory.
    pub directory: Directory,
    /// What a child of the start says of it.
    pub fit: Fit,
}

impl<T> Candidate<T> {
    /// Takes the next step with it, if it has come this far.
    pub fn then<U>(self, step: impl FnOnce(&PoolConfig, T) -> Result<U, Refusal>) -> Candidate<U> {
        let state = self.state.and_then(|state| step(&self.config, state));
        Candidate { config: self.config, state, volumes: self.volumes, uuid: self.uuid, waiting: self.waiting }
    }
}

impl Candidate<HostPool> {
    /// Looks at a pool of the configuration, and changes nothing.
    pub fn inspect(config: &PoolConfig, mounts: &Mounts, writes: bool, on_violation: OnViolation) -> Self {
        let config = config.clone();
        let needs = Needs { capabilities: CHILD, root: None, on_violation };
        let (mut volumes, mut uuid, mut fit) = (Vec::new(), None, None);
        let recorded = |packet: &[u8]| match bulkhead_protocol::decode(packet) {
            Ok(Said::Volume(id)) => volumes.push(id),
            Ok(Said::Uuid(found)) => uuid = Some(found.as_str().to_owned()),
            Ok(Said::Fit(found)) => fit = Some(found),
            Ok(Said::Sound(_)) | Err(_) => {}
        };
        let look = |line: &OwnedFd| {
            // What fails here fails again in the process that asks.
            let Ok(directory) = reach(&config.directory, OFlags::DIRECTORY) else { return };
            if let Ok(unprivileged) = privileges::give_up() {
                judge(&unprivileged, &directory, &config, mounts, writes, line);
            }
        };
        let (state, waiting) = match patience::in_child(patience::LIMIT, needs, look, recorded) {
            Ok(Ok(())) => (HostPool::open(&config, fit), None),
            Ok(Err(waiting)) => (Err(Why::Unanswering.because("its filesystem does not answer; see whether it is frozen (fsfreeze) or its disk hangs (dmesg); it is served as soon as it answers")), Some(waiting)),
            Err(error) => (Err(format!("the process that looks at it fails: {error}").into()), None),
        };
        Self { config, state, volumes, uuid, waiting }
    }
}

impl HostPool {
    /// Opens a pool that is said to be fit.
    fn open(config: &PoolConfig, said: Option<Result<Fit, Refusal>>) -> Result<Self, Refusal> {
        let path = shown(&config.directory).to_string();
        let cannot = |error| format!("cannot inspect {path}: {error}");
        let open =
            reach(&config.directory, OFlags::DIRECTORY).map_err(|error| format!("cannot open {path}: {error}"))?;
        let fit = said.ok_or_else(|| format!("{path} was not looked at"))??;
        if file::status(&open).map_err(cannot)?.id != fit.id {
            return Err(Why::Moved.because(format!("{path} was moved or unmounted during the start")));
        }
        let role = Role::Pool(config.name.clone());
        let directory = Directory::new(role, &config.directory, config.directory.clone(), open).map_err(cannot)?;
        check_owner(&directory.path, &directory.descriptor)?;
        Ok(Self { directory, fit })
    }
}

/// Opens a path of the administrator's for reading, which may be closed to root.
pub fn reach(path: &Path, flags: OFlags) -> SysResult<OwnedFd> {
    capability::where_refused(CHILD, || walk::open_at_start(path, OFlags::RDONLY | flags))
}
