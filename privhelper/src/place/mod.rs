//! The placer: the process that mounts, makes nodes of loop devices and sets limits, which is all that takes a capability
//! while requests are served. The keeper, which has none, asks for that over lines, with values only; [`wire`] has all that
//! it can ask for. What it asks is checked here on the kernel's own objects, as if the keeper were taken over:
//!
//! - only volumes' content is bound: what is below a pool, or the node of a loop device of ours;
//! - only at targets of which the kubelet has recorded that this volume belongs there, or below a `--publish-dir`;
//! - only what shows such content is unmounted;
//! - only limits of projects in the range for volumes are set;
//! - only loop devices with numbers of ours are opened, changed or get nodes.
//!
//! It keeps no table of volumes, but remembers which of them it has mounted a filesystem for.

pub mod attributes;
mod below;
mod devices;
pub mod kind;
mod mounting;
mod publish;
mod quotas;
mod shape;
mod target;
pub mod vol_data;
pub mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Barrier};

use bulkhead_protocol::{DriverName, MAX_PACKET, PoolName, PublishName, TargetPath, VolumeId};
use caps::Capability::CAP_SYS_ADMIN;

pub use below::Below;
pub use devices::Nodes;
pub use mounting::Mounting;
pub use shape::{Shape, TRIAL, parts};

use self::kind::Kind;
use self::wire::{Answer, Failure, OnFilesystem, Refusal, Request};
use crate::capabilities::PLACER;
use crate::log;
use crate::mounter::Work;
use crate::sys::capability::{self, allow};
use crate::sys::packet::Received;
use crate::sys::quota::ProjectId;
use crate::sys::{Errno, Error as SysError, Result as SysResult, failed_with, mount, packet};
use crate::threads;

/// An answer, and the descriptor that comes before it.
type Answered = (Answer, Option<OwnedFd>);

/// What the placer has.
#[derive(Debug)]
pub struct Place {
    /// CSI plugin name, which the kubelet's records have.
    pub driver: DriverName,
    /// Where volumes are published.
    pub publish: Vec<Below>,
    /// The pools that are served.
    pub pools: Vec<PoolPlace>,
    /// The nodes of loop devices.
    pub nodes: Nodes,
    /// The first and the last project for volumes.
    pub project_ids: (u32, u32),
    /// Projects of volumes that are not among these, by the device of the filesystem: the range was another when they were
    /// made.
    pub beyond: BTreeMap<(u32, u32), BTreeSet<ProjectId>>,
}

/// A pool, as the placer knows it.
#[derive(Debug)]
pub struct PoolPlace {
    /// Its name.
    pub name: PoolName,
    /// Its directory in the jail.
    pub directory: OwnedFd,
    /// Its marker, locked: another helper serves the pool only when this process has ended as well.
    pub marker: OwnedFd,
    /// The device of its filesystem.
    pub device: (u32, u32),
    /// What mounts filesystems in images, if it is configured for them.
    pub mounting: Option<Mounting>,
}

/// Serves each line by a thread of its own, so that none waits for what another does, once `confine` has taken from all of
/// them what they do not need. Returns when the keeper's end of `watch` is closed. When a mounter ends, it closes its own end,
/// and serves on until the keeper has ended.
///
/// # Errors
/// A sentence when that cannot begin.
pub fn run<E: From<String>>(
    place: Place,
    lines: Vec<OwnedFd>,
    watch: OwnedFd,
    confine: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    let place = Arc::new(place);
    let serve = |line: OwnedFd| {
        let own = Arc::clone(&place);
        Box::new(move || own.serve(&line)) as threads::Work
    };
    log::begin()?;
    let gate: Arc<Barrier> = threads::start(lines.into_iter().map(serve).collect())?;
    confine()?;
    gate.wait();
    let mounters = place.pools.iter().filter_map(|pool| Some(pool.mounting.as_ref()?.parts()[0]));
    let watched: Vec<_> = mounters.chain([&watch]).map(AsFd::as_fd).collect();
    loop {
        match packet::first_hung_up(&watched) {
            Ok(Some(last)) if last.saturating_add(1) == watched.len() => return Ok(()),
            Ok(Some(_)) => break,
            Ok(None) | Err(SysError { errno: Errno::INTR, .. }) => {}
            Err(error) => return Err(format!("it cannot wait: {error}").into()),
        }
    }
    log::error!("a mounter has ended");
    drop(watch);
    loop {
        std::thread::park();
    }
}

impl Place {
    /// What it has open.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let pools = self.pools.iter().flat_map(|pool| [&pool.directory, &pool.marker]);
        let mounting = self.pools.iter().flat_map(|pool| &pool.mounting).flat_map(Mounting::parts);
        let publish = self.publish.iter().map(|below| &below.root);
        pools.chain(mounting).chain(publish).chain([&self.nodes.directory]).map(AsFd::as_fd).collect()
    }

    /// Answers one request after another. A keeper that breaks the protocol is no keeper of ours: the line is closed, and
    /// it ends.
    fn serve(&self, line: &OwnedFd) {
        let mut buffer = [0; MAX_PACKET];
        loop {
            let packet = match packet::persistently(|| packet::receive(line, &mut buffer)) {
                Ok(Received::Packet(length)) => buffer.get(..length),
                _ => return,
            };
            let Some(Ok(request)) = packet.map(bulkhead_protocol::decode::<Request>) else { return };
            let _allowed = allow(PLACER);
            let carried_out = self.carry_out(request).map(|(answer, device)| (Ok(answer), device));
            let (answer, device) = carried_out.unwrap_or_else(|failure| (Err(failure), None));
            // Before the answer: what follows it may need a device that nobody else has open.
            let passed = device.map_or(Ok(()), |device| packet::persistently(|| pass(line, &device)));
            let answer = bulkhead_protocol::encode(&answer).map_err(|_| SysError::of(Errno::MSGSIZE));
            let sent = passed.and(answer).and_then(|answer| packet::persistently(|| packet::send(line, &answer, None)));
            if sent.is_err() {
                return;
            }
        }
    }

    fn carry_out(&self, request: Request) -> Result<Answered, Failure> {
        let answer = match request {
            Request::Bind(volume, content, target, flags) => self.bind(&volume, &content, &target, flags)?,
            Request::Unbind(target, kind, expected, is_joined) => {
                Answer::Is(self.unbind(&target, kind, expected, is_joined)?)
            }
            Request::Look(target, to_publish) => Answer::Looked(self.look(&target, to_publish.as_ref())?),
            Request::IsGone(id) => Answer::Is(failed_with(&mount::find(id), Errno::NOENT)),
            Request::IsMoved(name) => Answer::Is(self.below(&name)?.is_moved()),
            Request::Open(number, access) => return Ok((Answer::Done, Some(self.nodes.open(number, access)?))),
            Request::Command(number, command) => {
                self.nodes.command(&self.pools, number, command).map(|()| Answer::Done)?
            }
            Request::Quotas(pool, look, projects) => {
                quotas::get(&self.pool(&pool)?.directory, look, projects.as_slice())?
            }
            Request::NextQuota(pool, look, from) => quotas::next(&self.pool(&pool)?.directory, look, from)?,
            Request::SetQuota(pool, project, limits) => {
                let pool = self.pool(&pool)?;
                if !self.beyond.get(&pool.device).is_some_and(|beyond| beyond.contains(&project)) {
                    quotas::check(self.project_ids, project)?;
                }
                quotas::set(&pool.directory, project, limits)?
            }
            Request::Filesystem(pool, number, what) => return self.on_filesystem(&pool, number, what),
            Request::Attribute(pool, attribute, entry) => {
                let file = attribute.open(&self.pool(&pool)?.directory, entry.as_str())?;
                attributes::get(file, attribute).map(Answer::Attribute)?
            }
            Request::SetAttribute(pool, attribute, entry, value) => {
                let file = attribute.open(&self.pool(&pool)?.directory, entry.as_str())?;
                attributes::set(file, attribute, value.as_slice()).map(|()| Answer::Done)?
            }
        };
        Ok((answer, None))
    }

    fn on_filesystem(&self, name: &PoolName, number: u32, what: OnFilesystem) -> Result<Answered, Failure> {
        let pool = self.pool(name)?;
        let mounting = pool.mounting()?;
        let check = |volume: &VolumeId| self.check_device(volume, pool, Kind::Filesystem, number);
        match what {
            OnFilesystem::Look => return Ok((Answer::Filesystem(mounting.figures(number)?), None)),
            OnFilesystem::Mount(volume, label) => mounting.keep(number, &volume, label.as_ref(), || check(&volume))?,
            OnFilesystem::Work(Work::Mount) => return Err(SysError::of(Errno::INVAL).into()),
            OnFilesystem::Work(work) => return Ok((Answer::Done, Some(mounting.begin(number, work)?))),
            OnFilesystem::Prepare(mode) => mounting.prepare(number, mode)?,
            OnFilesystem::Release => mounting.release(number)?,
        }
        Ok((Answer::Done, None))
    }

    fn below(&self, name: &PublishName) -> Result<&Below, Refusal> {
        self.publish.iter().find(|below| below.name == *name).ok_or(Refusal::NoPublishDirectory)
    }

    /// The publish directory of a target at which volumes of this kind may be published.
    fn below_for(&self, target: &TargetPath, kind: Kind) -> Result<&Below, Refusal> {
        let below = self.below(&target.directory)?;
        if below.shape.allows(&target.path, kind) { Ok(below) } else { Err(Refusal::Shape) }
    }

    fn pool(&self, name: &PoolName) -> Result<&PoolPlace, Refusal> {
        self.pools.iter().find(|pool| pool.name == *name).ok_or(Refusal::NoPool)
    }
}

impl PoolPlace {
    fn mounting(&self) -> Result<&Mounting, Refusal> {
        self.mounting.as_ref().ok_or(Refusal::NoFilesystems)
    }
}

/// Sends a device, of which an answer follows: what all processes of the same user have in flight counts, unless this one
/// has the capability (unix(7)).
fn pass(line: &OwnedFd, device: &OwnedFd) -> SysResult<()> {
    capability::with(&[CAP_SYS_ADMIN], || packet::send(line, &[0], Some(device.as_fd())))
}

#[cfg(test)]
mod tests;
