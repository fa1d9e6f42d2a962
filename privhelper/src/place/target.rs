//! Targets: opening, checking, making, mounting on and removing them.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::RelativePath;
use caps::Capability::CAP_SYS_ADMIN;
use rustix::fs::{FileType, Mode};

use super::below::Below;
use super::kind::Kind;
use super::wire::{Failure, Found, Proof, Refusal};
use crate::sys::file::{self, FileId, Status};
use crate::sys::mount::{self, MountAttrFlags};
use crate::sys::{Errno, Error as SysError, Result as SysResult, capability};

/// A target, with the directory that holds it open.
pub struct Target<'a> {
    parent: OwnedFd,
    name: &'a str,
}

/// What is mounted at a target.
#[derive(Clone, Copy, Debug)]
pub enum Mounted {
    /// Its root.
    Seen(Status),
    /// It cannot be inspected.
    Unreadable,
}

/// The modes of the targets that the helper makes. The sticky bit has no effect on a file, nor on a directory that
/// nobody else may write to. Here it marks what the helper made, so that it is recognized after a crash.
const DIRECTORY_MODE: u32 = 0o1750;
/// See [`DIRECTORY_MODE`].
const FILE_MODE: u32 = 0o1600;

fn is_marked(file_type: FileType, mode: u32) -> bool {
    [(FileType::Directory, DIRECTORY_MODE), (FileType::RegularFile, FILE_MODE)].contains(&(file_type, mode & 0o7777))
}

impl<'a> Target<'a> {
    /// Opens the directory that holds a target.
    ///
    /// # Errors
    /// As [`Below::open_parent`].
    pub fn open(below: &Below, path: &'a RelativePath) -> Result<Self, Failure> {
        Ok(Self { parent: below.open_parent(path)?, name: path.split_last().1 })
    }

    /// The id of the directory that holds the target.
    pub fn parent_id(&self) -> SysResult<FileId> {
        Ok(file::status(&self.parent)?.id)
    }

    /// Returns what is at the target, if anything.
    pub fn status(&self) -> SysResult<Option<Status>> {
        match file::status_at(&self.parent, self.name) {
            Err(SysError { errno: Errno::NOENT, .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    /// What is mounted at the target, if anything.
    pub fn mount(&self) -> SysResult<Option<Mounted>> {
        match self.status() {
            // The filesystem of its directory answers.
            Err(SysError { errno: Errno::IO, .. }) => file::status(&self.parent).map(|_| Some(Mounted::Unreadable)),
            found => Ok(found?.filter(|status| status.mount_root).map(Mounted::Seen)),
        }
    }

    /// The id of the filesystem of what is mounted at the target (`f_fsid`).
    pub fn filesystem_id(&self) -> SysResult<u64> {
        file::open_entry(&self.parent, self.name).and_then(file::filesystem_id)
    }

    /// What the keeper is told of a mount at the target.
    pub fn found(&self, mount: Option<Mounted>) -> SysResult<Option<Found>> {
        Ok(match mount {
            None => None,
            Some(Mounted::Unreadable) => Some(Found::Unreadable),
            Some(Mounted::Seen(status)) => Some(Found::Seen(status.id, proof(self.unique_id()?, self.parent_id()?))),
        })
    }

    /// The id of the mount at the target that is never reused, on kernels that have one.
    pub fn unique_id(&self) -> SysResult<Option<NonZeroU64>> {
        mount::unique_id(&self.parent, self.name)
    }

    /// Makes the target afresh. Anything already there must be empty and of the right type.
    fn make(&self, kind: Kind) -> Result<(), Failure> {
        self.clear(Some(kind))?;
        if kind.is_device() {
            file::create(&self.parent, self.name, Mode::from_raw_mode(FILE_MODE))?;
        } else {
            file::make_directory(&self.parent, self.name, Mode::from_raw_mode(DIRECTORY_MODE))?;
        }
        Ok(())
    }

    /// Removes a target that is an empty directory or an empty file, and not a mount. If a kind of volume is wanted
    /// there, it must be of the type for that kind.
    pub fn clear(&self, wanted: Option<Kind>) -> Result<(), Failure> {
        let Some(status) = self.status()? else { return Ok(()) };
        if status.mount_root {
            return Err(Refusal::Mounted.into());
        }
        let removed = match (status.file_type, wanted.map(Kind::is_device)) {
            (FileType::Directory, Some(true)) => return Err(Refusal::IsDirectory.into()),
            (FileType::RegularFile, Some(false)) => return Err(Refusal::IsFile.into()),
            (FileType::Directory, _) => file::remove_directory(&self.parent, self.name),
            (FileType::RegularFile, _) if status.size == 0 => file::remove(&self.parent, self.name),
            (FileType::RegularFile, _) => return Err(Refusal::HasContent.into()),
            _ => return Err(Refusal::IsOther.into()),
        };
        removed.map_err(|error| match error.errno {
            Errno::NOTEMPTY | Errno::EXIST => Refusal::NotEmpty.into(),
            _ => error.into(),
        })
    }

    /// Returns whether what is at the target was made by [`Self::make`], in this helper or an earlier one.
    pub fn is_marked(&self) -> SysResult<bool> {
        Ok(self.status()?.is_some_and(|status| status.uid == 0 && is_marked(status.file_type, status.mode)))
    }

    /// Makes the target and binds `content` to it. Returns what was bound, and what will prove that it is gone.
    pub fn bind(&self, kind: Kind, content: impl AsFd, flags: MountAttrFlags) -> Result<(FileId, Proof), Failure> {
        let (parent, source) = (self.parent_id()?, file::status(&content)?.id);
        self.make(kind)?;
        let bound = || -> SysResult<Option<NonZeroU64>> {
            let entry = file::open_entry(&self.parent, self.name)?;
            // Three calls in a row, and each takes it: a mount is cloned, gets its flags, and is placed.
            capability::with(&[CAP_SYS_ADMIN], || mount::attach(&mount::clone_of(&content, flags)?, &entry))
        };
        // If nothing is mounted, the target is removed again.
        let unique = bound().inspect_err(|_| drop(self.clear(None)))?;
        Ok((source, proof(unique, parent)))
    }

    /// Unmounts the topmost mount at the target.
    ///
    /// # Errors
    /// A refusal when it is still in use.
    pub fn unmount(&self) -> Result<(), Failure> {
        let unmount = || mount::unmount_entry(self.parent.as_fd(), self.name);
        capability::with(&[CAP_SYS_ADMIN], unmount).map_err(|error| match error.errno {
            Errno::BUSY => Refusal::InUse.into(),
            _ => error.into(),
        })
    }
}

/// Returns what will prove that a mount in this directory is gone. Its id does only if the kernel can be asked for it:
/// the filter of a service manager may be older than statmount(2).
fn proof(unique: Option<NonZeroU64>, parent: FileId) -> Proof {
    let is_found = |id: &NonZeroU64| matches!(mount::find(*id), Ok(()) | Err(SysError { errno: Errno::OVERFLOW, .. }));
    unique.filter(is_found).map_or(Proof::Place(parent), Proof::Id)
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
