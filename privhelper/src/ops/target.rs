//! Targets: opening, checking, making, mounting on and removing them; and whether a volume is still mounted at one. The
//! start finds published volumes by the same means.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use bulkhead_protocol::{Condition, Error, ErrorKind, MountFlags, TargetPath, VolumeId};
use caps::Capability;
use rustix::fs::{FileType, Mode};

use crate::log::shown;
use crate::state::layout::DATA;
use crate::state::{
    Held, HeldTarget, Kind, Obstacle, Proof, PublishDirectory, Published, Served, State, Volume, busy, exists, failed,
    in_use, refused,
};
use crate::sys::capability::raise;
use crate::sys::file::{self, FileId, Status};
use crate::sys::loopdevice::MAJOR;
use crate::sys::mount::{self, MountAttrFlags};
use crate::sys::{Errno, Error as SysError, Result as SysResult, failed_with};

/// A target, with the directory that holds it open.
pub struct Target<'a> {
    /// Its path.
    pub path: &'a TargetPath,
    below: &'a PublishDirectory,
    parent: OwnedFd,
    name: &'a str,
}

/// What is mounted at a target.
#[derive(Clone, Copy, Debug)]
pub enum Mounted {
    /// Its root.
    Seen(Status),
    /// It cannot be inspected. If the pool of the volume in question has shut down, the id of its filesystem (`f_fsid`,
    /// statfs(2)) is still readable: XFS fails statx(2) with `EIO` then. Any other filesystem is not asked: it may be a
    /// tenant's own (fuse(4)), and never answer.
    Unreadable(Option<u64>),
    /// It cannot be inspected, and the volume in question has a filesystem of its own. The host's mount table says on
    /// which device it is.
    On(Option<(u32, u32)>),
}

impl Mounted {
    /// Returns whether it shows the volume: its directory, the node of its loop device, or what was published there. If
    /// its filesystem has shut down, that must be the one of the volume's pool, and the volume must have been
    /// published.
    pub fn is_of(&self, volume: &Volume, published: Option<&Published>) -> bool {
        let device = volume.device.map(|device| (MAJOR, device.number));
        let status = match self {
            Self::Seen(status) => status,
            Self::On(found) => return found.is_some() && *found == device,
            Self::Unreadable(_) => return published.is_some() && self.is_on_the_filesystem_of(volume),
        };
        let own = match volume.kind() {
            Kind::Directory => status.id == volume.content,
            Kind::Block => status.file_type == FileType::BlockDevice && Some(status.device) == device,
            Kind::Filesystem => Some(status.id.device) == device,
            Kind::Snapshot => false,
        };
        own || published.is_some_and(|published| published.source == status.id)
    }

    /// Returns whether it is a node that a helper has made, of a device that is bound to nothing any more.
    pub fn is_vacant(&self, state: &State) -> bool {
        let Self::Seen(status) = self else { return false };
        let (major, number) = status.device;
        status.file_type == FileType::BlockDevice && major == MAJOR && state.loops.is_vacant(number)
    }

    fn is_on_the_filesystem_of(&self, volume: &Volume) -> bool {
        let Self::Unreadable(Some(filesystem)) = self else { return false };
        let pool = volume.pool.served().ok().and_then(|pool| file::filesystem_id(&pool.directory).ok());
        pool == Some(*filesystem)
    }
}

/// Checks that a volume is published nowhere, as far as this helper has published it or found it published.
///
/// # Errors
/// `InUse` when it is published.
pub fn check_unpublished(held: &mut Held<'_>) -> Result<(), Error> {
    match still_published(held, None) {
        Some(path) => Err(in_use(format!("volume {} is published at {path}; unpublish it first", held.id))),
        None => Ok(()),
    }
}

/// Checks that the host shows nothing at a target that looks like the data of a volume that is not known.
///
/// # Errors
/// `InUse` when it does.
pub fn check_unknown_unmounted(state: &State, id: &VolumeId) -> Result<(), Error> {
    let mut found = None;
    let read = state.host.look(|mount| {
        let volume = mount.root.parent().and_then(Path::file_name);
        if mount.root.file_name() == Some(DATA.as_ref())
            && volume == Some(id.as_str().as_ref())
            && state.publish_directories.iter().any(|directory| directory.has_target_at(&mount.point))
        {
            found = Some(mount.point.clone());
        }
    });
    read.map_err(|error| failed("look at the host's mounts of volume", id, error))?;
    match found {
        None => Ok(()),
        Some(point) => Err(in_use(format!(
            "volume {id} is in no pool that is served, but mounted at {}; serve its pool, or unmount it there",
            shown(&point)
        ))),
    }
}

/// A target other than `except` at which the volume may still be mounted. Targets at which it certainly no longer is,
/// because somebody privileged has unmounted it, are forgotten.
pub fn still_published(held: &mut Held<'_>, except: Option<&TargetPath>) -> Option<Arc<TargetPath>> {
    let targets = held.known().map(|volume| volume.published.clone()).unwrap_or_default();
    for published in targets.into_iter().filter(|published| Some(&*published.target) != except) {
        if !is_gone(held.state, &published) {
            return Some(published.target);
        }
        held.change(|volume| volume.unpublish(&published.target));
    }
    None
}

/// Returns whether what was published at a target is certainly no longer mounted, neither there nor anywhere it was
/// moved to. A directory can be renamed while there is a mount in it, so the path alone proves nothing: what the kernel
/// says about the mount itself does or, where it cannot be asked, that nothing is mounted in the directory in which it
/// was.
pub fn is_gone(state: &State, published: &Published) -> bool {
    match published.proof {
        Proof::Id(id) => failed_with(&mount::find(id), Errno::NOENT),
        Proof::Place(parent) => {
            let is_free = || -> Result<bool, Error> {
                let target = Target::open(state.publish_directory(&published.target)?, &published.target)?;
                Ok(target.mount(state, None)?.is_none() && target.parent_id()? == parent)
            };
            is_free().unwrap_or(false)
        }
    }
}

/// Returns what will prove that a mount in this directory is gone. Its id does only if the kernel can be asked for it:
/// the filter of a service manager may be older than statmount(2).
fn proof(unique: Option<NonZeroU64>, parent: FileId) -> Proof {
    let is_found = |id: &NonZeroU64| matches!(mount::find(*id), Ok(()) | Err(SysError { errno: Errno::OVERFLOW, .. }));
    unique.filter(is_found).map_or(Proof::Place(parent), Proof::Id)
}

/// The error for a target from which the volume was moved away while mounted.
pub fn moved(held: &Held<'_>, path: &TargetPath) -> Error {
    in_use(format!(
        "volume {} was published at {path} and may still be mounted: a directory on the way has been moved or replaced; move it back, or find the mount (findmnt) and unmount it",
        held.id
    ))
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

impl<'a> Target<'a> {
    /// Opens the directory that holds a target.
    ///
    /// # Errors
    /// `NotFound` when the directory does not exist; `Refused` when the path to it contains a symbolic link or crosses
    /// into another mount, or when users other than root may change a directory on it.
    pub fn open(below: &'a PublishDirectory, path: &'a TargetPath) -> Result<Self, Error> {
        let parent = below.open_parent(&path.path);
        let parent = parent.map_err(|Obstacle { error, directory }| match error.errno {
            Errno::NOENT | Errno::NOTDIR => {
                Error::new(ErrorKind::NotFound, format!("the directory of target {path} does not exist"))
            }
            Errno::LOOP | Errno::XDEV => {
                refused(format!("the path to target {path} contains a symbolic link or crosses into another mount"))
            }
            Errno::PERM => {
                refused(format!(
                    "{directory}, on the way to target {path}, can be changed by users other than root; run: chown root {directory}; chmod go-w {directory}"
                ))
            }
            _ => failed("open the directory of target", path, error),
        })?;
        Ok(Self { path, below, parent, name: path.path.split_last().1 })
    }

    /// Opens a target to publish a volume there: also checks its shape, the kubelet's record of it, and that the host
    /// will see the mount.
    pub fn open_to_publish(at: &HeldTarget<'a>, held: &Held<'_>, kind: Kind) -> Result<Self, Error> {
        at.directory.check_shape(at.path, kind)?;
        at.directory.check_vol_data(at.path, held.id, &held.state.driver)?;
        held.state.host.check_joined(&at.directory.name)?;
        Self::open(at.directory, at.path)
    }

    /// The id of the directory that holds the target.
    fn parent_id(&self) -> Result<FileId, Error> {
        Ok(file::status(&self.parent).map_err(|error| failed("inspect the directory of target", self.path, error))?.id)
    }

    /// Returns what is at the target, if anything.
    pub fn status(&self) -> Result<Option<Status>, Error> {
        match file::status_at(&self.parent, self.name) {
            Ok(status) => Ok(Some(status)),
            Err(SysError { errno: Errno::NOENT, .. }) => Ok(None),
            Err(error) => Err(failed("inspect target", self.path, error)),
        }
    }

    /// The root of what is mounted at the target, if anything, to compare it with a volume.
    pub fn mount(&self, state: &State, volume: Option<&Volume>) -> Result<Option<Mounted>, Error> {
        let cannot = |error| failed("inspect target", self.path, error);
        match file::status_at(&self.parent, self.name) {
            Ok(status) => Ok(status.mount_root.then_some(Mounted::Seen(status))),
            Err(SysError { errno: Errno::NOENT, .. }) => Ok(None),
            Err(SysError { errno: Errno::IO, .. }) => {
                // The filesystem of its directory answers.
                file::status(&self.parent).map_err(cannot)?;
                if volume.is_some_and(|volume| volume.kind() == Kind::Filesystem) {
                    let point = self.below.real_path.join(self.path.path.as_str());
                    return state.host.device_at(&point).map(|device| Some(Mounted::On(device))).map_err(cannot);
                }
                let pool = volume.and_then(|volume| volume.pool.served().ok());
                if pool.and_then(Served::failure) != Some(Condition::ShutDown) {
                    return Ok(Some(Mounted::Unreadable(None)));
                }
                let there = file::open_entry(&self.parent, self.name).and_then(file::filesystem_id).map_err(cannot)?;
                Ok(Some(Mounted::Unreadable(Some(there))))
            }
            Err(error) => Err(cannot(error)),
        }
    }

    /// Makes the target afresh. Anything already there must be empty and of the right type.
    fn make(&self, kind: Kind) -> Result<(), Error> {
        self.clear(Some(kind))?;
        let made = if kind.is_device() {
            file::create(&self.parent, self.name, Mode::from_raw_mode(FILE_MODE)).map(drop)
        } else {
            file::make_directory(&self.parent, self.name, Mode::from_raw_mode(DIRECTORY_MODE))
        };
        made.map_err(|error| failed("make target", self.path, error))
    }

    /// Removes a target that is an empty directory or an empty file, and not a mount. If a kind of volume is wanted
    /// there, it must be of the type for that kind.
    pub fn clear(&self, wanted: Option<Kind>) -> Result<(), Error> {
        let Some(status) = self.status()? else { return Ok(()) };
        let incompatible = |is: &str| Error::new(ErrorKind::Incompatible, format!("target {} {is}", self.path));
        if status.mount_root {
            return Err(exists(format!("something else is mounted at target {}; unmount it first", self.path)));
        }
        let removed = match (status.file_type, wanted.map(Kind::is_device)) {
            (FileType::Directory, Some(true)) => {
                return Err(incompatible("is a directory, but must be a file; remove it"));
            }
            (FileType::RegularFile, Some(false)) => {
                return Err(incompatible("is a file, but must be a directory; remove it"));
            }
            (FileType::Directory, _) => file::remove_directory(&self.parent, self.name),
            (FileType::RegularFile, _) if status.size == 0 => file::remove(&self.parent, self.name),
            (FileType::RegularFile, _) => return Err(incompatible("is a file with content; remove it")),
            _ => return Err(incompatible("is neither a directory nor a file; remove it")),
        };
        removed.map_err(|error| match error.errno {
            Errno::NOTEMPTY | Errno::EXIST => incompatible("is a directory that is not empty; empty it"),
            _ => failed("remove target", self.path, error),
        })
    }

    /// Returns whether what is at the target was made by [`Self::make`], in this helper or an earlier one.
    pub fn is_marked(&self) -> Result<bool, Error> {
        Ok(self.status()?.is_some_and(|status| status.uid == 0 && is_marked(status.file_type, status.mode)))
    }

    /// Makes the target and binds `content` to it, with the flags set before anybody can see the mount. Returns what
    /// was bound.
    pub fn bind(
        &self,
        kind: Kind,
        content: impl AsFd,
        flags: MountAttrFlags,
        wanted: MountFlags,
    ) -> Result<Published, Error> {
        let parent = self.parent_id()?;
        self.make(kind)?;
        let bound = || -> SysResult<(FileId, Option<NonZeroU64>)> {
            let source = file::status(&content)?.id;
            let entry = file::open_entry(&self.parent, self.name)?;
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            let mount = mount::clone_of(&content)?;
            let unique = mount::unique_id(&mount, "")?;
            mount::set_flags(&mount, flags)?;
            mount::attach(&mount, &entry)?;
            Ok((source, unique))
        };
        let (source, unique) = bound().map_err(|error| {
            // Nothing is mounted: remove the target again.
            let _ = self.clear(None);
            failed("publish at target", self.path, error)
        })?;
        Ok(self.published(source, wanted, proof(unique, parent)))
    }

    /// Returns what is known of a mount here that shows `source`.
    fn published(&self, source: FileId, flags: MountFlags, proof: Proof) -> Published {
        // The configured directory's own name, so that its text is stored only once.
        let target = TargetPath { directory: self.below.name.clone(), path: self.path.path.clone() };
        Published { target: Arc::new(target), source, flags, proof }
    }

    /// Returns what is published here of a volume, if the mount that can be seen shows it.
    pub fn find(&self, state: &State, volume: &Volume, flags: MountFlags) -> Result<Option<Published>, Error> {
        let Some(Mounted::Seen(status)) = self.mount(state, Some(volume))?.filter(|mount| mount.is_of(volume, None))
        else {
            return Ok(None);
        };
        let unique = mount::unique_id(&self.parent, self.name);
        let unique = unique.map_err(|error| failed("inspect target", self.path, error))?;
        Ok(Some(self.published(status.id, flags, proof(unique, self.parent_id()?))))
    }

    /// Unmounts the topmost mount at the target.
    ///
    /// # Errors
    /// `Busy` when it is still in use.
    pub fn unmount(&self) -> Result<(), Error> {
        let unmounted =
            raise(Capability::CAP_SYS_ADMIN).and_then(|_raised| mount::unmount_entry(self.parent.as_fd(), self.name));
        unmounted.map_err(|error| match error.errno {
            Errno::BUSY => {
                busy(format!("target {} is busy: a process or a mount inside the volume uses it", self.path))
            }
            _ => failed("unmount target", self.path, error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
