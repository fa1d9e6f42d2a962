//! What an operation begins with: its volumes and its target, locked, with their filesystems admitted. Operations take
//! these values instead of ids, and there is no other way to change what is known of a volume; so one that needs two
//! volumes takes two of them, and cannot forget to lock either.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bulkhead_protocol::{CallId, Error, ErrorKind, Pace, PoolName, TargetPath, VolumeId};
use rustix::fs::OFlags;

use super::locks::{Admitted, Locked};
use super::refusals::replaced;
use super::{
    Aside, Host, Kind, Pool, PublishDirectory, Served, State, Volume, failed, layout, unsupported, wrong_kind,
};
use crate::bookkeeping::Share;
use crate::sys::quota::ProjectId;
use crate::sys::{Errno, file};

/// A volume that nobody else changes meanwhile, whether it exists or not.
#[derive(Debug)]
pub struct Held<'a> {
    /// Everything else.
    pub state: &'a State,
    /// Its id.
    pub id: &'a VolumeId,
    volume: Option<Arc<Volume>>,
    _locked: Locked<'a, VolumeId>,
    _admitted: Option<Admitted>,
}

/// A target at which nobody else publishes or unpublishes anything meanwhile.
#[derive(Debug)]
pub struct HeldTarget<'a> {
    /// Its path.
    pub path: &'a TargetPath,
    /// The publish directory that it is below.
    pub directory: &'a PublishDirectory,
    _locked: Locked<'a, TargetPath>,
}

/// A target in a publish directory that the host's mount table has just shown to be joined to the host's: only there is
/// anything mounted, and nothing is unmounted elsewhere. Only [`HeldTarget::joined`] makes one, which asks the host.
#[derive(Debug)]
pub struct Joined<'a> {
    target: &'a HeldTarget<'a>,
}

/// A volume that is only looked at.
#[derive(Debug)]
pub struct Seen {
    /// The volume.
    pub volume: Arc<Volume>,
    _admitted: Option<Admitted>,
}

impl State {
    /// Holds a volume, known or not, for an operation that waits for this.
    ///
    /// # Errors
    /// `Busy` when another operation holds it, or too many are in progress on its filesystem. No lock is waited for, so
    /// the order in which two are taken does not matter.
    pub fn hold<'a>(&'a self, id: &'a VolumeId, pace: Pace) -> Result<Held<'a>, Error> {
        let locked = self.locks.volume(id)?;
        let volume = self.volumes.get(id);
        let admitted = volume.as_deref().map(|volume| volume.pool.admit(pace)).transpose()?.flatten();
        Ok(Held { state: self, id, volume, _locked: locked, _admitted: admitted })
    }

    /// Holds a volume that is to be made in a pool, and returns the pool with it.
    ///
    /// # Errors
    /// As [`Self::hold`], and when the pool does not exist or is not served.
    pub fn hold_new<'a>(
        &'a self,
        id: &'a VolumeId,
        pool: &PoolName,
        pace: Pace,
    ) -> Result<(Held<'a>, &'a Arc<Pool>), Error> {
        let locked = self.locks.volume(id)?;
        let pool = self.pool(pool)?;
        pool.served()?;
        Ok((
            Held { state: self, id, volume: self.volumes.get(id), _locked: locked, _admitted: pool.admit(pace)? },
            pool,
        ))
    }

    /// Holds volumes of one pool, known or not, for one operation that waits for this: it takes one place.
    ///
    /// # Errors
    /// As [`Self::hold`]; `Unsupported` when they are in several pools: while one of those hangs, the operation would keep
    /// everybody from the others.
    pub fn hold_together<'a>(
        &'a self,
        ids: impl IntoIterator<Item = &'a VolumeId>,
        pace: Pace,
    ) -> Result<Vec<Held<'a>>, Error> {
        let mut all = Vec::<Held<'a>>::new();
        for id in ids {
            let locked = self.locks.volume(id)?;
            let volume = self.volumes.get(id);
            let first = all.iter().find_map(|held| Some((held.id, held.known()?)));
            let admitted = match (volume.as_deref(), first) {
                (Some(volume), Some((other, first))) if !Arc::ptr_eq(&volume.pool, &first.pool) => {
                    return Err(in_several_pools(other, id));
                }
                (Some(volume), None) => volume.pool.admit(pace)?,
                _ => None,
            };
            all.push(Held { state: self, id, volume, _locked: locked, _admitted: admitted });
        }
        Ok(all)
    }

    /// Holds a target.
    ///
    /// # Errors
    /// `Busy` when another operation holds it, `Refused` when there is no such publish directory.
    pub fn hold_target<'a>(&'a self, path: &'a TargetPath) -> Result<HeldTarget<'a>, Error> {
        Ok(HeldTarget { path, directory: self.publish_directory(path)?, _locked: self.locks.target(path)? })
    }

    /// Looks at a volume, which excludes nobody else, for an operation that waits for this.
    ///
    /// # Errors
    /// `NotFound` when it does not exist, `Busy` when too many operations are in progress on its filesystem.
    pub fn see(&self, id: &VolumeId, pace: Pace) -> Result<Seen, Error> {
        let volume = self.volumes.get(id).ok_or_else(|| self.unknown(id))?;
        let admitted = volume.pool.admit(pace)?;
        Ok(Seen { volume, _admitted: admitted })
    }
}

impl HeldTarget<'_> {
    /// Asks whether what is mounted or unmounted at this target is so on the host too.
    ///
    /// # Errors
    /// `InUse` when its publish directory is apart from the host.
    pub fn joined(&self, host: &Host) -> Result<Joined<'_>, Error> {
        host.check_joined(&self.directory.name)?;
        Ok(Joined { target: self })
    }
}

impl Joined<'_> {
    /// The target.
    pub fn target(&self) -> &HeldTarget<'_> {
        self.target
    }
}

impl Held<'_> {
    /// The volume, if it is known.
    pub fn known(&self) -> Option<&Volume> {
        self.volume.as_deref()
    }

    /// The volume, which must exist and be of this kind, and its pool, which must be served.
    ///
    /// # Errors
    /// `NotFound`, `WrongKind` or `PoolBroken`.
    pub fn existing(&self, kind: Kind) -> Result<(&Volume, &Served), Error> {
        let volume = self.known().ok_or_else(|| self.state.unknown(self.id))?;
        if volume.kind() == kind { Ok((volume, volume.pool.served()?)) } else { Err(wrong_kind(self.id, kind)) }
    }

    /// Opens the volume's content.
    ///
    /// # Errors
    /// `PoolBroken` when it is not what it was when the volume was made or found: somebody has exchanged directories.
    pub fn open_content(&self, flags: OFlags) -> Result<OwnedFd, Error> {
        let volume = self.known().ok_or_else(|| self.state.unknown(self.id))?;
        let opened = layout::open_content(&volume.pool.served()?.directory, self.id, volume.kind(), flags);
        let opened = opened.and_then(|content| Ok((file::status(&content)?.id, content)));
        let (found, content) = opened.map_err(|error| failed("open the content of volume", self.id, error))?;
        if found == volume.content {
            return Ok(content);
        }
        Err(replaced(self.id))
    }

    /// Checks that what goes by the volume's name is the volume's content, or nothing is left of that.
    ///
    /// # Errors
    /// As [`Self::open_content`].
    pub fn check_content(&self) -> Result<(), Error> {
        match self.open_content(OFlags::PATH) {
            Err(error) if error.kind == ErrorKind::Io(Errno::NOENT.raw_os_error()) => Ok(()),
            opened => opened.map(drop),
        }
    }

    /// Changes what is known of the volume.
    pub fn change(&mut self, change: impl FnOnce(&mut Volume)) {
        // The check that always agrees is the only thing that could fail.
        let _ = self.change_if(|_| Ok(()), change);
    }

    /// Changes what is known of the volume if `check` agrees, given what is promised on the filesystem so far.
    ///
    /// # Errors
    /// Those of `check`.
    pub fn change_if(
        &mut self,
        check: impl FnOnce(u64) -> Result<(), Error>,
        change: impl FnOnce(&mut Volume),
    ) -> Result<(), Error> {
        self.volume = self.state.volumes.change(self.id, check, change)?;
        Ok(())
    }

    /// Promises a share to the volume, which is to be made in a pool, if `check` agrees, given what is promised so far. Then
    /// `begin` does what has to be done before its directory is made, and that last; if it fails, nothing was made, and
    /// nothing is promised any more. Otherwise the promise ends with [`Self::add`], [`Self::delete`] or [`Self::leave_unfinished`].
    ///
    /// # Errors
    /// Those of `check` and `begin`.
    pub fn promise<T>(
        &self,
        pool: &Arc<Pool>,
        share: Share,
        check: impl FnOnce(u64) -> Result<(), Error>,
        begin: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.state.volumes.begin(self.id, pool, share, check)?;
        begin().inspect_err(|_| self.state.volumes.give_up(self.id))
    }

    /// Takes a project for the volume, which is being made, unless another has it.
    pub fn claim(&self, project: ProjectId) -> bool {
        self.state.volumes.claim(self.id, project)
    }

    /// Promises so many bytes to the volume, which is being made, in place of what it was promised, if `check` agrees, given
    /// what is promised to all others.
    ///
    /// # Errors
    /// Those of `check`.
    pub fn promise_instead(&self, bytes: u64, check: impl FnOnce(u64) -> Result<(), Error>) -> Result<(), Error> {
        self.state.volumes.promise(self.id, bytes, check)
    }

    /// Records that what an earlier attempt has left of the volume in a pool was put aside.
    pub fn move_unfinished(&self, pool: &Pool, aside: &Aside) {
        self.state.volumes.rename_deleted(pool, &layout::creating_name(self.id), aside);
    }

    /// Adds the volume, which is there now.
    pub fn add(&mut self, volume: Volume) {
        self.state.volumes.add(self.id.clone(), volume);
        self.volume = self.state.volumes.get(self.id);
    }

    /// Records that the volume, or what was made of it, was put aside to be emptied, and for which call.
    pub fn delete(&mut self, aside: &Aside, call: CallId) {
        self.state.volumes.delete(self.id, aside, call);
        self.volume = None;
    }

    /// Records that what was made of a volume is left where it was being made: the next attempt puts it aside, or the next
    /// start.
    pub fn leave_unfinished(&mut self) {
        self.state.volumes.leave_unfinished(self.id);
    }

    /// Checks that the host shows the volume nowhere.
    ///
    /// # Errors
    /// `InUse` when it does, or when it might without being seen.
    pub fn check_unmounted(&self) -> Result<(), Error> {
        let Some(volume) = self.known() else { return Ok(()) };
        volume.pool.served()?;
        let device = volume.device.map(|device| device.number());
        self.state.host.check_unmounted(&self.state.pools_at(), self.id, device)
    }
}

fn in_several_pools(one: &VolumeId, other: &VolumeId) -> Error {
    unsupported(format!("{one} and {other} are in different pools: what is taken together is in one pool"))
}
