//! Filesystems in images: the connection to the process that mounts them, and the place in which their mounts are kept. For
//! what else a mounter does, nobody waits here: the keeper is given a line over which it hears of that.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_protocol::{SecurityContext, VolumeId};
use caps::Capability::CAP_SYS_ADMIN;
use rustix::fs::{Mode, OFlags};

use super::devices;
use super::kind::DATA;
use super::wire::{Failure, Figures, answered, end};
use crate::mounter::{self, Work};
use crate::sys::mount::Flagged;
use crate::sys::packet::Timeout;
use crate::sys::{
    Called, Errno, Error as SysError, Result as SysResult, capability, file, mount, packet, unless, with_patience, xfs,
};

/// What a pool has for filesystems in images. Each is mounted once, as the entry of a private directory that is called after
/// its device; what is published is bound from there.
#[derive(Debug)]
pub struct Mounting {
    /// The connection to the mounter.
    mounter: OwnedFd,
    /// The lines over which mounts come that were asked for, by the number of the device.
    awaited: Mutex<BTreeMap<u32, OwnedFd>>,
    /// Which volumes' filesystems are kept, by the number of the device.
    kept: Mutex<BTreeMap<u32, VolumeId>>,
    /// The mounter's root, which is a tmpfs: it sees the nodes in it, but not what is mounted there.
    place: OwnedFd,
}

/// How long an operation waits for a mount. The helper ends in order within five seconds.
const PATIENCE: Duration = Duration::from_secs(4);

impl Mounting {
    /// The mounter is at the other end of the socket, and has this place as its root.
    pub fn new(mounter: OwnedFd, place: OwnedFd) -> Self {
        Self { mounter, awaited: Mutex::default(), kept: Mutex::default(), place }
    }

    /// The connection, which is hung up when the mounter has ended, and the place.
    pub fn parts(&self) -> [&OwnedFd; 2] {
        [&self.mounter, &self.place]
    }

    /// Returns whether the filesystem on a device is kept here. It is not asked itself: it may have shut down, or never
    /// answer.
    fn keeps(&self, number: u32) -> SysResult<bool> {
        match file::open(&self.place, &kept(number), OFlags::PATH) {
            Err(SysError { errno: Errno::XDEV, .. }) => Ok(true),
            opened => unless(Errno::NOENT, opened.map(drop)).map(|()| false),
        }
    }

    /// The root of the filesystem on a device, for path resolution; `None` if it is not kept here.
    fn root(&self, number: u32) -> SysResult<Option<OwnedFd>> {
        if self.keeps(number)? { file::open_entry(&self.place, &kept(number)).map(Some) } else { Ok(None) }
    }

    /// Has something done to the mounted filesystem on a device, and returns the line over which that is answered.
    pub fn begin(&self, number: u32, work: Work) -> SysResult<OwnedFd> {
        let root = self.root(number)?.ok_or(SysError::of(Errno::NXIO))?;
        self.ask(work, file::open(root, ".", OFlags::RDONLY | OFlags::DIRECTORY)?)
    }

    /// The root of the filesystem on a device, if it is kept here as that of a volume.
    pub fn root_of(&self, number: u32, volume: &VolumeId) -> SysResult<Option<OwnedFd>> {
        let is_of = lock(&self.kept).get(&number) == Some(volume);
        if is_of { self.root(number) } else { Ok(None) }
    }

    /// What a filesystem says of itself; `None` if it is not kept here.
    pub fn figures(&self, number: u32) -> SysResult<Option<Figures>> {
        let Some(root) = self.root(number)? else { return Ok(None) };
        // The figures are in the kernel's memory, and there even after it has shut down.
        let space = rustix::fs::fstatvfs(&root).by("fstatfs")?;
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        Ok(Some(Figures {
            used: bytes(space.f_blocks.saturating_sub(space.f_bfree)),
            free: bytes(space.f_bavail),
            used_inodes: space.f_files.saturating_sub(space.f_ffree),
            free_inodes: space.f_favail,
            failure: file::status(&root).err().map(|error| error.errno.raw_os_error()),
        }))
    }

    /// Makes the directory that is published in a filesystem, unless it is there.
    pub fn prepare(&self, number: u32, mode: u16) -> SysResult<()> {
        let root = self.root(number)?.ok_or(SysError::of(Errno::NXIO))?;
        match file::open(&root, DATA, OFlags::PATH | OFlags::DIRECTORY) {
            Err(SysError { errno: Errno::NOENT, .. }) => {
                file::make_directory(&root, DATA, Mode::from_raw_mode(mode.into()))?;
                file::sync(file::open(&root, ".", OFlags::RDONLY | OFlags::DIRECTORY)?)
            }
            opened => opened.map(drop),
        }
    }

    /// Asks the mounter for something about what goes with it, which is not kept: it would keep the filesystem. Returns the
    /// line to its child.
    fn ask(&self, work: Work, with: OwnedFd) -> SysResult<OwnedFd> {
        let request = bulkhead_protocol::encode(&work).map_err(|_| SysError::of(Errno::INVAL))?;
        let (line, other) = packet::pair()?;
        packet::set_timeout(&self.mounter, Timeout::Send, Some(PATIENCE))?;
        // What all processes of the same user have in flight counts, unless this one has the capability (unix(7)).
        match capability::with(&[CAP_SYS_ADMIN], || packet::send(&self.mounter, &[0], Some(other.as_fd()))) {
            // It has ended, and the helper is about to: what else is in progress is answered before.
            Err(SysError { errno: Errno::AGAIN | Errno::PIPE | Errno::CONNRESET, .. }) => {
                return Err(Errno::INPROGRESS).by("the mounter");
            }
            sent => sent?,
        }
        capability::with(&[CAP_SYS_ADMIN], || packet::send(&line, &request, Some(with.as_fd()))).map(|()| line)
    }

    /// Asks for the mount of the filesystem on a device, and returns the line over which it comes.
    fn begin_mount(&self, number: u32, label: Option<&SecurityContext>) -> SysResult<OwnedFd> {
        let (node, label) = (mounter::node(number), label.map(SecurityContext::as_str));
        unless(Errno::EXIST, devices::make(&self.place, &node, number))?;
        let context = capability::with(&[CAP_SYS_ADMIN], || xfs::configure(&format!("/{node}"), label))?;
        let line = self.ask(Work::Mount, context)?;
        packet::set_timeout(&line, Timeout::Recv, Some(PATIENCE)).map(|()| line)
    }

    /// Waits for a mount that was asked for, which is attached to nothing.
    ///
    /// # Errors
    /// The kernel's, if it failed; `INPROGRESS` if it takes long, or nobody is left to say so. What is not the mount that was
    /// asked for ends the process: a mounter that hands it over is nobody's any more.
    fn made(&self, number: u32, line: OwnedFd) -> SysResult<Flagged> {
        let mut answer = [0; 4];
        let made = packet::receive_with_descriptor(&line, &mut answer);
        if let Err(SysError { errno: Errno::AGAIN | Errno::INTR, .. }) = made {
            lock(&self.awaited).insert(number, line);
            return Err(Errno::INPROGRESS).by("the mounter");
        }
        drop(self.forget(number));
        let (received, mount) = made.map_or_else(|error| (Err(error), None), |(received, mount)| (Ok(received), mount));
        answered(received, answer)?;
        let mount = mount.unwrap_or_else(|| end("it said that there is a mount, and there is none"));
        xfs::checked_mount(mount, number)?.map_or_else(|| end("it handed over something else than a mount"), Ok)
    }

    /// Expects no mount any more of the filesystem on a device, and returns the line over which it comes, if it was asked for.
    fn forget(&self, number: u32) -> Option<OwnedFd> {
        // This can fail only if the node is already missing.
        let _ = file::remove(&self.place, &*mounter::node(number));
        lock(&self.awaited).remove(&number)
    }

    /// Has the filesystem on a device mounted, and keeps the mount, if `check` finds the device bound to what it should be. It
    /// is asked again once the filesystem is mounted, as nobody can bind the device anew from then on.
    pub fn keep(
        &self,
        number: u32,
        volume: &VolumeId,
        label: Option<&SecurityContext>,
        check: impl Fn() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        check()?;
        if self.keeps(number)? {
            return Ok(());
        }
        let awaited = lock(&self.awaited).remove(&number);
        let mount = self.made(number, awaited.map_or_else(|| self.begin_mount(number, label), Ok)?)?;
        check()?;
        unless(Errno::EXIST, file::make_directory(&self.place, &kept(number), Mode::RWXU))?;
        let entry = file::open_entry(&self.place, &kept(number))?;
        capability::with(&[CAP_SYS_ADMIN], || mount::attach(&mount, &entry))?;
        lock(&self.kept).insert(number, volume.clone());
        Ok(())
    }

    /// Unmounts the filesystem on a device, if it is kept here.
    ///
    /// # Errors
    /// `BUSY` when it is still in use.
    pub fn release(&self, number: u32) -> SysResult<()> {
        // What was handed over and not received may be unmounted by this.
        drop(self.forget(number));
        while self.keeps(number)? {
            let unmount = || mount::unmount_entry(self.place.as_fd(), &kept(number));
            // The mounter may not have closed its own descriptor yet, and who asks for the usage has one for a moment.
            with_patience(Errno::BUSY, || capability::with(&[CAP_SYS_ADMIN], unmount))?;
        }
        lock(&self.kept).remove(&number);
        unless(Errno::NOENT, file::remove_directory(&self.place, &kept(number)))
    }
}

/// Locks a table, which is held for memory only.
fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The name under which the filesystem on a device is kept.
fn kept(number: u32) -> String {
    format!("filesystem{number}")
}
