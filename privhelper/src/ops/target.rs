//! Targets: opened, checked, made, mounted on, and removed.

use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{Error, ErrorKind, TargetPath, VolumeId};
use caps::Capability;
use rustix::fs::{FileType, Mode};

use super::pins::check_unpinned;
use crate::state::{Kind, State, Volume, failed};
use crate::sys::capability::raise;
use crate::sys::file::{self, FileId, Status};
use crate::sys::mount::{self, MountAttrFlags};
use crate::sys::{Errno, Result as SysResult};

/// A target, with the directory that holds it open.
pub struct Target<'a> {
    /// Its path.
    pub path: &'a TargetPath,
    parent: OwnedFd,
    name: &'a str,
}

/// Checks that a volume is published nowhere. Targets are forgotten where somebody has taken the mount away, but not
/// where the directory itself is gone: the kernel lets a directory be renamed with a mount in it.
///
/// # Errors
/// `InUse` when it is published.
pub fn check_unpublished(state: &State, id: &VolumeId, volume: &Volume) -> Result<(), Error> {
    for path in volume.targets.keys() {
        match Target::open(state, path).and_then(|target| target.mount()) {
            Ok(None) => state.volumes.remove_target(id, path),
            _ => {
                let message = format!("volume {id} is published at {path}; unpublish it first");
                return Err(Error::new(ErrorKind::InUse, message));
            }
        }
    }
    check_unpinned(state, id, None)
}

/// Whether nothing is mounted at a target, for certain.
pub fn is_clear(state: &State, path: &TargetPath) -> bool {
    match Target::open(state, path).and_then(|target| target.mount()) {
        Ok(mount) => mount.is_none(),
        Err(error) => error.kind == ErrorKind::NotFound,
    }
}

impl<'a> Target<'a> {
    /// Opens the directory that holds a target.
    ///
    /// # Errors
    /// `NotFound` when the directory does not exist, `Refused` when the way to it is not plain directories.
    pub fn open(state: &State, path: &'a TargetPath) -> Result<Self, Error> {
        let directory = state.publish_directory(path)?;
        let parent = directory.open_parent(&path.path).map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR => {
                Error::new(ErrorKind::NotFound, format!("the directory of target {path} does not exist"))
            }
            Errno::LOOP | Errno::XDEV => {
                let message =
                    format!("the path to target {path} contains a symbolic link or crosses into another mount");
                Error::new(ErrorKind::Refused, message)
            }
            errno => failed("open the directory of target", path, errno),
        })?;
        Ok(Self { path, parent, name: path.path.split_last().1 })
    }

    /// The same, to publish a volume there: also checks the target's shape and the kubelet's word for it.
    pub fn open_to_publish(state: &State, path: &'a TargetPath, id: &VolumeId, kind: Kind) -> Result<Self, Error> {
        let directory = state.publish_directory(path)?;
        directory.check_shape(path, kind)?;
        directory.check_vol_data(path, id, &state.driver)?;
        Self::open(state, path)
    }

    /// What is at the target, if anything is.
    pub fn status(&self) -> Result<Option<Status>, Error> {
        match file::status_at(&self.parent, self.name) {
            Ok(status) => Ok(Some(status)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("inspect target", self.path, errno)),
        }
    }

    /// The root of what is mounted at the target, if anything is.
    pub fn mount(&self) -> Result<Option<Status>, Error> {
        Ok(self.status()?.filter(|status| status.mount_root))
    }

    /// Makes the target anew. What is there must be empty and of the right form.
    pub fn make(&self, kind: Kind) -> Result<(), Error> {
        self.clear(Some(kind))?;
        let made = match kind {
            Kind::Directory => file::make_directory(&self.parent, self.name, Mode::from_raw_mode(0o750)),
            Kind::Block => file::create(&self.parent, self.name, Mode::from_raw_mode(0o600)).map(drop),
        };
        made.map_err(|errno| failed("make target", self.path, errno))
    }

    /// Removes a target that is an empty directory or an empty file, and no mount. If volumes of a kind are wanted
    /// there, it must have the form for them.
    pub fn clear(&self, wanted: Option<Kind>) -> Result<(), Error> {
        let Some(status) = self.status()? else { return Ok(()) };
        let incompatible = |is: &str| Error::new(ErrorKind::Incompatible, format!("target {} {is}", self.path));
        if status.mount_root {
            let message = format!("something else is mounted at target {}; unmount it first", self.path);
            return Err(Error::new(ErrorKind::AlreadyExists, message));
        }
        let removed = match (status.file_type, wanted) {
            (FileType::Directory, Some(Kind::Block)) => {
                return Err(incompatible("is a directory, but must be a file; remove it"));
            }
            (FileType::RegularFile, Some(Kind::Directory)) => {
                return Err(incompatible("is a file, but must be a directory; remove it"));
            }
            (FileType::Directory, _) => file::remove_directory(&self.parent, self.name),
            (FileType::RegularFile, _) if status.size == 0 => file::remove(&self.parent, self.name),
            (FileType::RegularFile, _) => return Err(incompatible("is a file with content; remove it")),
            _ => return Err(incompatible("is neither a directory nor a file; remove it")),
        };
        removed.map_err(|errno| match errno {
            Errno::NOTEMPTY | Errno::EXIST => incompatible("is a directory that is not empty; empty it"),
            errno => failed("remove target", self.path, errno),
        })
    }

    /// Binds `content` to the target, with its flags set before anybody can see it, and returns what was bound.
    pub fn bind(&self, content: impl AsFd, flags: MountAttrFlags) -> Result<FileId, Error> {
        let bound = || -> SysResult<FileId> {
            let id = file::status(&content)?.id;
            let entry = file::open_entry(&self.parent, self.name)?;
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            let mount = mount::clone_of(&content)?;
            mount::set_flags(&mount, flags)?;
            mount::attach(&mount, &entry)?;
            Ok(id)
        };
        bound().map_err(|errno| {
            // Nothing is mounted: the target is removed again.
            let _ = self.clear(None);
            failed("publish at target", self.path, errno)
        })
    }

    /// Unmounts the topmost mount at the target.
    ///
    /// # Errors
    /// `Busy` when it is still used.
    pub fn unmount(&self) -> Result<(), Error> {
        let unmounted =
            raise(Capability::CAP_SYS_ADMIN).and_then(|_raised| mount::unmount_entry(self.parent.as_fd(), self.name));
        unmounted.map_err(|errno| match errno {
            Errno::BUSY => {
                let message = format!("target {} is busy: a process or a mount inside the volume uses it", self.path);
                Error::new(ErrorKind::Busy, message)
            }
            errno => failed("unmount target", self.path, errno),
        })
    }
}
