//! What all publishing shares: is this target free, is what is mounted there ours, and how it goes away.

use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{Error, ErrorKind, MountFlags, Reply, TargetPath, VolumeId};
use caps::Capability;
use rustix::fs::{FileType, Mode};

use crate::state::{Published, Purpose, State, Volume, failed};
use crate::sys::capability::raise;
use crate::sys::file::{self, FileId, Status};
use crate::sys::mount::{self, MountAttrFlags};
use crate::sys::{Errno, Result as SysResult};

/// A target and the directory that holds it.
pub struct Held<'a> {
    /// The target.
    pub target: &'a TargetPath,
    /// The directory, open.
    pub parent: OwnedFd,
    name: &'a str,
}

/// What a target is to become: an empty directory, or an empty file to put a device node on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A directory.
    Directory,
    /// A file.
    File,
}

/// Opens the directory that holds a target.
pub fn hold<'a>(state: &State, target: &'a TargetPath) -> Result<Held<'a>, Error> {
    let directory = state.publish_directory(target)?;
    let parent = directory.open_parent(&target.path).map_err(|errno| match errno {
        Errno::NOENT | Errno::NOTDIR => {
            Error::new(ErrorKind::NotFound, format!("the directory of target {target} is not there"))
        }
        Errno::LOOP | Errno::XDEV => Error::new(
            ErrorKind::Refused,
            format!("the way to target {target} leads over a symbolic link or into another mount"),
        ),
        errno => failed("open the directory of target", target, errno),
    })?;
    Ok(Held { target, parent, name: target.path.split_last().1 })
}

/// Whether a volume may be published at a target besides where it is; `true` if it is there already, the same way.
///
/// # Errors
/// `AlreadyExists` when the target holds another volume, or this one in another way; `InUse` when the volume is
/// published elsewhere and may not be.
pub fn is_published(
    state: &State,
    id: &VolumeId,
    volume: &Volume,
    held: &Held<'_>,
    flags: MountFlags,
    exclusive: bool,
) -> Result<bool, Error> {
    let target = held.target;
    if let Some(published) = volume.targets.get(target) {
        if held.status()?.is_some_and(|status| status.mount_root && status.id == published.source) {
            return if published.flags == flags {
                Ok(true)
            } else {
                Err(Error::new(
                    ErrorKind::AlreadyExists,
                    format!("volume {id} is published at {target} with other flags"),
                ))
            };
        }
        // Somebody with the right to do so has unmounted it.
        state.volumes.unpublish(id, target);
    } else if let Some(other) = state.volumes.at(target) {
        return Err(Error::new(ErrorKind::AlreadyExists, format!("target {target} holds volume {other}")));
    }
    if let Some(other) = volume.targets.keys().find(|other| exclusive && *other != target) {
        let message = format!("volume {id} is published at {other}, and the access mode allows one target only");
        return Err(Error::new(ErrorKind::InUse, message));
    }
    Ok(false)
}

impl Held<'_> {
    /// What is at the target, if anything is.
    pub fn status(&self) -> Result<Option<Status>, Error> {
        match file::status_at(&self.parent, self.name) {
            Ok(status) => Ok(Some(status)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("look at target", self.target, errno)),
        }
    }

    /// Makes the target anew. One that is there must be an empty directory or an empty file, and no mount.
    pub fn make(&self, form: Form) -> Result<(), Error> {
        let fail = |errno| failed("make target", self.target, errno);
        self.clear(Some(form))?;
        match form {
            Form::Directory => file::make_directory(&self.parent, self.name, Mode::from_raw_mode(0o750)).map_err(fail),
            Form::File => file::create(&self.parent, self.name, Mode::from_raw_mode(0o600)).map(drop).map_err(fail),
        }
    }

    /// Removes a target that is no mount, if it is an empty directory or an empty file. One that is wanted must have
    /// the form that is wanted.
    pub fn clear(&self, wanted: Option<Form>) -> Result<(), Error> {
        let Some(status) = self.status()? else { return Ok(()) };
        let incompatible = |is: &str| Error::new(ErrorKind::Incompatible, format!("target {} {is}", self.target));
        if status.mount_root {
            let message = format!("something that is none of this volume is mounted at target {}", self.target);
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        let removed = match (status.file_type, wanted) {
            (FileType::Directory, None | Some(Form::Directory)) => file::remove_directory(&self.parent, self.name),
            (FileType::RegularFile, None | Some(Form::File)) if status.size == 0 => {
                file::remove(&self.parent, self.name)
            }
            (FileType::RegularFile, None | Some(Form::File)) => {
                return Err(incompatible("is a file with content; remove it"));
            }
            (FileType::Directory, Some(Form::File)) => {
                return Err(incompatible("is a directory where a file must be; remove it"));
            }
            (FileType::RegularFile, Some(Form::Directory)) => {
                return Err(incompatible("is a file where a directory must be; remove it"));
            }
            _ => return Err(incompatible("is neither a directory nor a file; remove it")),
        };
        removed.map_err(|errno| match errno {
            Errno::NOTEMPTY | Errno::EXIST => incompatible("is a directory with something in it; empty it"),
            errno => failed("remove target", self.target, errno),
        })
    }

    /// Binds `source` to the target, complete before anybody can see it, and answers what was bound.
    pub fn bind(&self, source: impl AsFd, flags: MountAttrFlags) -> Result<FileId, Error> {
        let bound = || -> SysResult<FileId> {
            let id = file::status(&source)?.id;
            let entry = file::open_entry(&self.parent, self.name)?;
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            let mount = mount::clone_of(&source)?;
            mount::set_flags(&mount, flags)?;
            mount::attach(&mount, &entry)?;
            Ok(id)
        };
        bound().map_err(|errno| {
            // Nothing is mounted: the target goes as it came.
            let _ = self.clear(None);
            failed("publish at target", self.target, errno)
        })
    }

    /// Unmounts everything at the target that is proved ours, notes it, then removes the target.
    fn unpublish(
        &self,
        state: &State,
        id: &VolumeId,
        volume: &Volume,
        is_ours: impl Fn(&Status) -> bool,
    ) -> Result<(), Error> {
        let recorded = volume.targets.get(self.target).map(|published| published.source);
        while let Some(status) = self.status()?.filter(|status| status.mount_root) {
            if recorded != Some(status.id) && !is_ours(&status) {
                let message = format!("something that is none of this volume is mounted at target {}", self.target);
                return Err(Error::new(ErrorKind::InUse, message));
            }
            let _raised = raise(Capability::CAP_SYS_ADMIN).map_err(|errno| failed("unmount", self.target, errno))?;
            mount::unmount_entry(self.parent.as_fd(), self.name).map_err(|errno| match errno {
                Errno::BUSY => {
                    let message =
                        format!("target {} is busy: a process or a mount inside the volume uses it", self.target);
                    Error::new(ErrorKind::Busy, message)
                }
                errno => failed("unmount target", self.target, errno),
            })?;
        }
        state.volumes.unpublish(id, self.target);
        self.clear(None)
    }
}

/// Notes in the table that a volume is published.
pub fn note(state: &State, id: &VolumeId, held: &Held<'_>, source: FileId, flags: MountFlags) {
    state.volumes.publish(id, held.target.clone(), Published { source, flags });
}

/// A target at which a volume is published. Entries of the table whose mount somebody has taken away are forgotten; one
/// whose directory is gone is kept: the kernel lets a directory be renamed with a mount in it.
pub fn still_published(state: &State, id: &VolumeId, volume: &Volume) -> Result<Option<TargetPath>, Error> {
    for target in volume.targets.keys() {
        match hold(state, target).and_then(|held| held.status()) {
            Ok(status) if !status.is_some_and(|status| status.mount_root) => state.volumes.unpublish(id, target),
            _ => return Ok(Some(target.clone())),
        }
    }
    Ok(None)
}

/// Whether nothing is mounted at a target, for certain.
pub fn is_clear(state: &State, target: &TargetPath) -> bool {
    match hold(state, target) {
        Ok(held) => held.status().is_ok_and(|status| !status.is_some_and(|status| status.mount_root)),
        Err(error) => error.kind == ErrorKind::NotFound,
    }
}

/// Takes a volume away from a target, and removes the target. What is not there is as good as taken away.
///
/// # Errors
/// `InUse` when the target holds something that is none of this volume, `Busy` when it is still used.
pub fn unpublish(
    state: &State,
    id: &VolumeId,
    volume: &Volume,
    target: &TargetPath,
    purpose: Purpose,
    is_ours: impl Fn(&Status) -> bool,
) -> Result<Reply, Error> {
    if let Some(other) = state.volumes.at(target).filter(|other| other != id) {
        return Err(Error::new(ErrorKind::InUse, format!("target {target} holds volume {other}, not {id}")));
    }
    state.publish_directory(target)?.check_shape(target, purpose)?;
    match hold(state, target) {
        Err(error) if error.kind == ErrorKind::NotFound => state.volumes.unpublish(id, target),
        held => held?.unpublish(state, id, volume, is_ours)?,
    }
    Ok(Reply::Done)
}
