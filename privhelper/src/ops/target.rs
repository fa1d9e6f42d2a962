//! Targets: opening, checking, making, mounting on and removing them.

use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{Error, ErrorKind, MountFlags, TargetPath, VolumeId};
use caps::Capability;
use rustix::fs::{FileType, Mode};

use super::pins::check_unpinned;
use crate::state::{Kind, Obstacle, Published, State, Volume, failed};
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

/// What is mounted at a target.
#[derive(Clone, Copy, Debug)]
pub enum Mounted {
    /// Its root.
    Seen(Status),
    /// Only the id of its filesystem is readable (`f_fsid`, statfs(2)): XFS fails statx(2) with `EIO` once it has shut
    /// down.
    ShutDown(u64),
}

impl Mounted {
    /// Whether it is what was published there. If its filesystem has shut down, that must be the one of the volume's
    /// pool.
    pub fn is(&self, published: &Published, volume: &Volume, state: &State) -> bool {
        match self {
            Self::Seen(status) => status.id == published.source,
            Self::ShutDown(filesystem) => state
                .pool_at(volume.pool)
                .is_ok_and(|pool| file::filesystem_id(&pool.directory).is_ok_and(|own| own == *filesystem)),
        }
    }
}

/// Checks that a volume is published nowhere.
///
/// # Errors
/// `InUse` when it is published.
pub fn check_unpublished(state: &State, id: &VolumeId, volume: &Volume) -> Result<(), Error> {
    match still_published(state, id, volume, None) {
        Some(path) => {
            Err(Error::new(ErrorKind::InUse, format!("volume {id} is published at {path}; unpublish it first")))
        }
        None => check_unpinned(state, id, None),
    }
}

/// A target other than `except` at which a volume may still be mounted. Targets at which it certainly no longer is,
/// because somebody privileged has unmounted it, are forgotten.
pub fn still_published<'a>(
    state: &State,
    id: &VolumeId,
    volume: &'a Volume,
    except: Option<&TargetPath>,
) -> Option<&'a TargetPath> {
    for (path, published) in volume.targets.iter().filter(|(path, _)| Some(&**path) != except) {
        if !is_gone(state, path, published) {
            return Some(path);
        }
        state.volumes.remove_target(id, path);
    }
    None
}

/// Whether what was published at a target is certainly no longer mounted, neither there nor anywhere it was moved to. A
/// directory can be renamed while there is a mount in it, so the path alone proves nothing.
pub fn is_gone(state: &State, path: &TargetPath, published: &Published) -> bool {
    let found = published.mount.map_or(Err(Errno::NOSYS), mount::find);
    is_proved_gone(found, || {
        let target = Target::open(state, path)?;
        Ok(target.mount()?.is_none() && target.parent_id()? == published.parent)
    })
}

/// The error for a target from which the volume was moved away while mounted.
pub fn moved(id: &VolumeId, path: &TargetPath) -> Error {
    let message = format!(
        "volume {id} was published at {path} and may still be mounted: a directory on the way has been moved or replaced; move it back, or find the mount (findmnt) and unmount it"
    );
    Error::new(ErrorKind::InUse, message)
}

/// What the kernel says about the mount itself is proof. Where it cannot be asked, nothing may be mounted at the target
/// in the very directory in which it was made: only root, who could unmount it as well, can have moved it out of there.
fn is_proved_gone(found: SysResult<()>, is_free_where_it_was: impl FnOnce() -> Result<bool, Error>) -> bool {
    match found {
        Ok(()) => false,
        Err(Errno::NOENT) => true,
        Err(_) => is_free_where_it_was().unwrap_or(false),
    }
}

/// The modes of the targets that the helper makes. The sticky bit has no effect on a file, nor on a directory that
/// nobody else may write to. Here it marks what the helper made, so that it is recognized after a crash.
const DIRECTORY_MODE: u32 = 0o1750;
/// See [`DIRECTORY_MODE`].
const FILE_MODE: u32 = 0o1600;

fn is_marked(file_type: FileType, mode: u32) -> bool {
    match file_type {
        FileType::Directory => mode & 0o7777 == DIRECTORY_MODE,
        FileType::RegularFile => mode & 0o7777 == FILE_MODE,
        _ => false,
    }
}

/// Whether certainly nothing is mounted at a target.
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
    /// `NotFound` when the directory does not exist; `Refused` when the path to it contains a symbolic link or crosses
    /// into another mount, or when users other than root may change a directory on it.
    pub fn open(state: &State, path: &'a TargetPath) -> Result<Self, Error> {
        let parent = state.publish_directory(path)?.open_parent(&path.path);
        let parent = parent.map_err(|Obstacle { errno, directory }| match errno {
            Errno::NOENT | Errno::NOTDIR => {
                Error::new(ErrorKind::NotFound, format!("the directory of target {path} does not exist"))
            }
            Errno::LOOP | Errno::XDEV => {
                let message =
                    format!("the path to target {path} contains a symbolic link or crosses into another mount");
                Error::new(ErrorKind::Refused, message)
            }
            Errno::PERM => {
                let message = format!(
                    "{directory}, on the way to target {path}, can be changed by users other than root; run: chown root {directory}; chmod go-w {directory}"
                );
                Error::new(ErrorKind::Refused, message)
            }
            errno => failed("open the directory of target", path, errno),
        })?;
        Ok(Self { path, parent, name: path.path.split_last().1 })
    }

    /// The same, to publish a volume there: also checks the target's shape and the kubelet's record of it.
    pub fn open_to_publish(state: &State, path: &'a TargetPath, id: &VolumeId, kind: Kind) -> Result<Self, Error> {
        let directory = state.publish_directory(path)?;
        directory.check_shape(path, kind)?;
        directory.check_vol_data(path, id, &state.driver)?;
        Self::open(state, path)
    }

    /// The id of the directory that holds the target.
    fn parent_id(&self) -> Result<FileId, Error> {
        Ok(file::status(&self.parent).map_err(|errno| failed("inspect the directory of target", self.path, errno))?.id)
    }

    /// What is at the target, if anything.
    pub fn status(&self) -> Result<Option<Status>, Error> {
        match file::status_at(&self.parent, self.name) {
            Ok(status) => Ok(Some(status)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("inspect target", self.path, errno)),
        }
    }

    /// The root of what is mounted at the target, if anything.
    pub fn mount(&self) -> Result<Option<Mounted>, Error> {
        let cannot = |errno| failed("inspect target", self.path, errno);
        match file::status_at(&self.parent, self.name) {
            Ok(status) => Ok(status.mount_root.then_some(Mounted::Seen(status))),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::IO) => {
                let there = file::open_entry(&self.parent, self.name).and_then(file::filesystem_id).map_err(cannot)?;
                let here = file::filesystem_id(&self.parent).map_err(cannot)?;
                if there == here { Err(cannot(Errno::IO)) } else { Ok(Some(Mounted::ShutDown(there))) }
            }
            Err(errno) => Err(cannot(errno)),
        }
    }

    /// Makes the target afresh. Anything already there must be empty and of the right type.
    pub fn make(&self, kind: Kind) -> Result<(), Error> {
        self.clear(Some(kind))?;
        let made = match kind {
            Kind::Directory => file::make_directory(&self.parent, self.name, Mode::from_raw_mode(DIRECTORY_MODE)),
            Kind::Block => file::create(&self.parent, self.name, Mode::from_raw_mode(FILE_MODE)).map(drop),
        };
        made.map_err(|errno| failed("make target", self.path, errno))
    }

    /// Removes a target that is an empty directory or an empty file, and not a mount. If a kind of volume is wanted
    /// there, it must be of the type for that kind.
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

    /// Whether what is at the target was made by [`Self::make`], in this helper or an earlier one.
    pub fn is_marked(&self) -> Result<bool, Error> {
        Ok(self.status()?.is_some_and(|status| status.uid == 0 && is_marked(status.file_type, status.mode)))
    }

    /// Binds `content` to the target, with the flags set before anybody can see the mount, and returns what was bound.
    pub fn bind(&self, content: impl AsFd, flags: MountAttrFlags, wanted: MountFlags) -> Result<Published, Error> {
        let parent = self.parent_id()?;
        let bound = || -> SysResult<Published> {
            let source = file::status(&content)?.id;
            let entry = file::open_entry(&self.parent, self.name)?;
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            let mount = mount::clone_of(&content)?;
            let unique = mount::unique_id(&mount, "")?;
            mount::set_flags(&mount, flags)?;
            mount::attach(&mount, &entry)?;
            Ok(Published { source, flags: wanted, parent, mount: unique })
        };
        bound().map_err(|errno| {
            // Nothing is mounted: remove the target again.
            let _ = self.clear(None);
            failed("publish at target", self.path, errno)
        })
    }

    /// Unmounts the topmost mount at the target.
    ///
    /// # Errors
    /// `Busy` when it is still in use.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_gone_when_the_kernel_says_so_or_where_it_cannot_be_asked_its_place_is_free() {
        let fail = || Err(Error::new(ErrorKind::Io(5), "inspect target: I/O error"));
        let never = || -> Result<bool, Error> { panic!("the path is not asked where the kernel has answered") };
        assert!(!is_proved_gone(Ok(()), never));
        assert!(is_proved_gone(Err(Errno::NOENT), never));
        for cannot_be_asked in [Errno::NOSYS, Errno::PERM, Errno::NOMEM] {
            assert!(is_proved_gone(Err(cannot_be_asked), || Ok(true)), "{cannot_be_asked}");
            assert!(!is_proved_gone(Err(cannot_be_asked), || Ok(false)), "{cannot_be_asked}");
            assert!(!is_proved_gone(Err(cannot_be_asked), fail), "{cannot_be_asked}: what cannot be seen may be there");
        }
    }

    #[test]
    fn only_the_very_modes_are_marks() {
        for (file_type, mode, marked) in [
            (FileType::Directory, 0o041_750, true),
            (FileType::RegularFile, 0o101_600, true),
            (FileType::Directory, 0o040_750, false),
            (FileType::Directory, 0o041_777, false),
            (FileType::Directory, 0o043_750, false),
            (FileType::Directory, 0o041_600, false),
            (FileType::RegularFile, 0o100_600, false),
            (FileType::RegularFile, 0o101_750, false),
            (FileType::Fifo, 0o011_600, false),
        ] {
            assert_eq!(is_marked(file_type, mode), marked, "{file_type:?} {mode:o}");
        }
    }
}
