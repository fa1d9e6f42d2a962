//! The keeper's end of the lines to the placer.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use bulkhead_protocol::{Error, MAX_PACKET, MountFlags, PoolName, PublishName, TargetPath, Text, UpTo, VolumeId};

use super::refusals::explain;
use super::works::Works;
use super::{HeldTarget, Joined, Lent, Volume, lock};
use crate::errors::failed;
use crate::log;
use crate::place::attributes::Attribute;
use crate::place::kind::Kind;
use crate::place::wire::{
    Access, Answer, Command, Content, Failure, Figures, Found, Looked, MOST_QUOTAS, OnFilesystem, Proof, Refusal,
    Request,
};
use crate::sys::file::FileId;
use crate::sys::packet::Received;
use crate::sys::quota::{Look, ProjectId, ProjectQuota};
use crate::sys::{Errno, Error as SysError, Result as SysResult, packet};

/// Lines to the placer.
#[derive(Debug)]
pub struct Placer {
    /// As many as there are threads that may ask it for something, so that none waits for another.
    lines: Mutex<Vec<OwnedFd>>,
    /// The publish directories, as seen on the host.
    directories: BTreeMap<PublishName, Text>,
    /// What is done to filesystems in images, and takes long.
    pub(super) works: Works,
}

impl Placer {
    /// The placer is at the other end of these lines, and has these publish directories.
    pub fn new(lines: Vec<OwnedFd>, directories: BTreeMap<PublishName, Text>) -> Self {
        Self { lines: Mutex::new(lines), directories, works: Works::default() }
    }

    /// Binds a volume's content to a target, which for a block volume is a node of this device; returns what was bound, and
    /// what will prove that it is gone.
    pub fn bind(
        &self,
        (id, volume): (&VolumeId, &Volume),
        node: Option<&Lent>,
        at: &Joined<'_>,
        flags: MountFlags,
    ) -> Result<(FileId, Proof), Error> {
        let (own, target) = (volume.content(), at.target().path);
        let device = if own.kind == Kind::Block { node.map(|node| node.device().number()) } else { own.device };
        let bind = Request::Bind(id.clone(), Content { device, ..own }, target.clone(), flags);
        match self.of_target("publish at target", target, bind)? {
            Answer::Bound(source, proof) => Ok((source, proof)),
            other => unexpected(&other),
        }
    }

    /// Unmounts what was found at the target of a volume of this kind, and removes the target. Where that is not joined to the
    /// host's, it only looks. Returns whether nothing is left to be done, as far as the placer can say; `None` if the host would
    /// not see it.
    pub fn unbind(
        &self,
        at: &HeldTarget<'_>,
        joined: Option<&Joined<'_>>,
        kind: Kind,
        found: Option<Found>,
    ) -> Result<Option<bool>, Error> {
        let target = joined.map_or(at, Joined::target).path;
        let request = Request::Unbind(target.clone(), kind, found, joined.is_some());
        match self.ask(&request) {
            Ok((Answer::Is(is_done), _)) => Ok(Some(is_done)),
            Ok((other, _)) => unexpected(&other),
            Err(Failure::Refused(Refusal::Apart)) => Ok(None),
            Err(failure) => Err(self.explained("unmount target", target, failure, &request)),
        }
    }

    /// Looks at a target; and if this volume is to be published there, whether it may be.
    pub fn look(&self, target: &TargetPath, to_publish: Option<(VolumeId, Kind)>) -> Result<Looked, Error> {
        match self.of_target("inspect target", target, Request::Look(target.clone(), to_publish))? {
            Answer::Looked(looked) => Ok(looked),
            other => unexpected(&other),
        }
    }

    /// Returns whether a mount is certainly gone.
    pub fn is_gone(&self, id: NonZeroU64) -> bool {
        matches!(self.kernel(&Request::IsGone(id)), Ok(Answer::Is(true)))
    }

    /// Returns whether a publish directory is known to have been renamed or replaced since the start.
    pub fn is_moved(&self, name: &PublishName) -> SysResult<bool> {
        match self.kernel(&Request::IsMoved(name.clone()))? {
            Answer::Is(is_moved) => Ok(is_moved),
            other => unexpected(&other),
        }
    }

    /// Opens a loop device.
    pub fn open(&self, number: u32, access: Access) -> SysResult<OwnedFd> {
        let request = Request::Open(number, access);
        let (_, device) = self.ask(&request).map_err(|failure| self.kernels(failure, &request))?;
        device.ok_or(SysError::of(Errno::BADF))
    }

    /// Does something to a loop device.
    pub fn command(&self, number: u32, command: Command) -> SysResult<()> {
        self.kernel(&Request::Command(number, command)).map(drop)
    }

    /// What projects on the filesystem of a pool use and may use.
    pub fn quotas(&self, pool: &PoolName, look: Look, projects: &[ProjectId]) -> SysResult<Vec<ProjectQuota>> {
        let mut found = Vec::new();
        for some in projects.chunks(MOST_QUOTAS) {
            let projects = some.to_vec().try_into().map_err(|_| SysError::of(Errno::INVAL))?;
            match self.kernel(&Request::Quotas(pool.clone(), look, projects))? {
                Answer::Quotas(quotas) => found.extend_from_slice(quotas.as_slice()),
                other => unexpected(&other),
            }
        }
        Ok(found)
    }

    /// What one project uses and may use.
    pub fn quota(&self, pool: &PoolName, look: Look, project: ProjectId) -> SysResult<ProjectQuota> {
        self.quotas(pool, look, &[project])?.pop().ok_or(SysError::of(Errno::BADMSG))
    }

    /// The first project from this one on of which the filesystem of a pool knows.
    pub fn next_quota(
        &self,
        pool: &PoolName,
        look: Look,
        from: ProjectId,
    ) -> SysResult<Option<(ProjectId, ProjectQuota)>> {
        match self.kernel(&Request::NextQuota(pool.clone(), look, from))? {
            Answer::Next(next) => Ok(next),
            other => unexpected(&other),
        }
    }

    /// Sets the limits of a project, in bytes and inodes.
    pub fn set_quota(&self, pool: &PoolName, project: ProjectId, limits: (u64, u64)) -> SysResult<()> {
        self.kernel(&Request::SetQuota(pool.clone(), project, limits)).map(drop)
    }

    /// Begins to do something about the filesystem on a loop device, and returns the line on which to wait for its end, if it
    /// may take long.
    pub(super) fn begin(&self, pool: &PoolName, number: u32, what: OnFilesystem) -> SysResult<Option<OwnedFd>> {
        let request = Request::Filesystem(pool.clone(), number, what);
        self.ask(&request).map(|(_, line)| line).map_err(|failure| self.kernels(failure, &request))
    }

    /// What the filesystem on a loop device says of itself; `None` if it is not mounted.
    pub fn figures(&self, pool: &PoolName, number: u32) -> SysResult<Option<Figures>> {
        match self.kernel(&Request::Filesystem(pool.clone(), number, OnFilesystem::Look))? {
            Answer::Filesystem(figures) => Ok(figures),
            other => unexpected(&other),
        }
    }

    /// What is recorded on a file of a pool; `None` if nothing is.
    pub fn attribute(&self, pool: &PoolName, entry: &str, attribute: Attribute) -> SysResult<Option<Vec<u8>>> {
        match self.kernel(&Request::Attribute(pool.clone(), attribute, Text::new(entry)))? {
            Answer::Attribute(value) => Ok(value.map(UpTo::into_vec)),
            other => unexpected(&other),
        }
    }

    /// Records something on a file of a pool.
    pub fn set_attribute(&self, pool: &PoolName, entry: &str, attribute: Attribute, value: &[u8]) -> SysResult<()> {
        let value = value.to_vec().try_into().map_err(|_| SysError::of(Errno::RANGE))?;
        self.kernel(&Request::SetAttribute(pool.clone(), attribute, Text::new(entry), value)).map(drop)
    }

    fn of_target(&self, operation: &str, target: &TargetPath, request: Request) -> Result<Answer, Error> {
        let answered = self.ask(&request).map(|(answer, _)| answer);
        answered.map_err(|failure| self.explained(operation, target, failure, &request))
    }

    fn explained(&self, operation: &str, target: &TargetPath, failure: Failure, request: &Request) -> Error {
        match failure {
            Failure::Refused(refusal) => explain(refusal, request, &self.directories),
            failure => failed(operation, target, self.kernels(failure, request)),
        }
    }

    fn kernel(&self, request: &Request) -> SysResult<Answer> {
        self.ask(request).map(|(answer, _)| answer).map_err(|failure| self.kernels(failure, request))
    }

    /// The error of a system call, of a request that is never refused otherwise.
    fn kernels(&self, failure: Failure, request: &Request) -> SysError {
        match failure {
            Failure::Refused(refusal) => {
                SysError::relayed(Errno::PERM, explain(refusal, request, &self.directories).to_string())
            }
            Failure::Kernel(errno, call) => {
                SysError::relayed(Errno::from_raw_os_error(errno.clamp(1, 4095)), call.to_string())
            }
        }
    }

    fn ask(&self, request: &Request) -> Result<(Answer, Option<OwnedFd>), Failure> {
        let packet = bulkhead_protocol::encode(request).map_err(|_| SysError::of(Errno::MSGSIZE))?;
        let line = lock(&self.lines).pop().ok_or(SysError::of(Errno::BUSY))?;
        let sent = packet::persistently(|| packet::send(&line, &packet, None));
        let answered = sent.and_then(|()| receive(&line));
        let (answer, device) = answered.unwrap_or_else(|error| end(&error.to_string()));
        lock(&self.lines).push(line);
        answer.map(|answer| (answer, device))
    }
}

/// An answer, and the device that came before it.
type Answered = (Result<Answer, Failure>, Option<OwnedFd>);

fn receive(line: &OwnedFd) -> SysResult<Answered> {
    let mut buffer = [0; MAX_PACKET];
    let (mut received, device) = packet::persistently(|| packet::receive_with_descriptor(line, &mut buffer))?;
    if device.is_some() {
        received = packet::persistently(|| packet::receive(line, &mut buffer))?;
    }
    let Received::Packet(length) = received else { return Err(SysError::of(Errno::PIPE)) };
    let answer = buffer.get(..length).and_then(|packet| bulkhead_protocol::decode(packet).ok());
    answer.map(|answer| (answer, device)).ok_or(SysError::of(Errno::BADMSG))
}

fn unexpected(answer: &Answer) -> ! {
    end(&format!("it answers something else: {answer:?}"))
}

/// Ends the process: without a placer it can do nothing, and its successor has a new one.
fn end(why: &str) -> ! {
    log::last_words(&format!("the helper exits: it cannot go on with its placer: {why}"));
    std::process::exit(1);
}
