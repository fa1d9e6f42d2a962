//! Mount namespaces: what is made, hidden and left when one is entered.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::libc;
use rustix::mount::{FsMountFlags, OpenTreeFlags, UnmountFlags, fsconfig_create, fsmount};

use super::file::raw_fd;
use super::mount::{CLONE_ONE, Flagged, MountAttrFlags, change_directory, configure, mount_setattr};
use super::{Called, Result};

impl AsFd for Flagged {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A copy of the mount at the open directory and of all mounts below it; they stay peers of the originals, and have their
/// flags.
pub fn clone_of_tree(source: impl AsFd) -> Result<Flagged> {
    rustix::mount::open_tree(source, "", CLONE_ONE | OpenTreeFlags::AT_RECURSIVE).map(Flagged).by("open_tree")
}

/// Isolates a mount that is held open from what happens to its peers.
pub fn make_private(mount: impl AsFd) -> Result<()> {
    mount_setattr(raw_fd(&mount), c"", libc::AT_EMPTY_PATH, 0, 0, libc::MS_PRIVATE)
}

/// Isolates every mount of this namespace from other namespaces.
pub fn make_all_private() -> Result<()> {
    mount_setattr(libc::AT_FDCWD, c"/", libc::AT_RECURSIVE, 0, 0, libc::MS_PRIVATE)
}

/// A detached, empty tmpfs with limits on its size and its inodes, and the mode of its root. Device nodes work in it.
/// The mount table shows `source` as what it was mounted from.
pub fn tmpfs(source: &str, (size, inodes, mode): (&str, &str, &str)) -> Result<Flagged> {
    let options = [("source", source), ("size", size), ("nr_inodes", inodes), ("mode", mode)];
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    create(&configure("tmpfs", options)?, flags).map(Flagged)
}

/// A detached mount of what was configured. The name of a device is looked up only now.
pub fn create(context: &OwnedFd, flags: MountAttrFlags) -> Result<OwnedFd> {
    fsconfig_create(context.as_fd()).by("FSCONFIG_CMD_CREATE")?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags).by("fsmount")
}

/// Makes the working directory, which is a mount, the root of this mount namespace and detaches the old root. Nothing
/// may still be shared with another namespace: detaching a shared tree unmounts it there too.
pub fn pivot_to_working_directory() -> Result<()> {
    rustix::process::pivot_root(".", ".").by("pivot_root")?;
    detach_private(".")?;
    change_directory("/")
}

/// Makes another directory, which is a mount, the root in the way of [`pivot_to_working_directory`].
pub fn pivot_to(directory: &str) -> Result<()> {
    change_directory(directory)?;
    pivot_to_working_directory()
}

/// Detaches a private mount from this namespace, even if it is in use.
pub fn detach_private(path: &str) -> Result<()> {
    rustix::mount::unmount(path, UnmountFlags::DETACH).by_with("umount2", path)
}
