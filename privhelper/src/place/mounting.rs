//! Filesystems in images: the connection to the process that mounts them, and the place in which their mounts are kept.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bulkhead_protocol::VolumeId;
use caps::Capability;
use rustix::fs::{Mode, OFlags};

use super::kind::DATA;
use super::wire::{Answer, Failure, Figures};
use crate::log;
use crate::mounter::{self, Work};
use crate::sys::capability::raise;
use crate::sys::packet::Received;
use crate::sys::{
    Called, Errno, Error as SysError, Result as SysResult, file, loopdevice, mount, or_done, packet, with_patience, xfs,
};

/// What a pool has for filesystems in images. Each is mounted once, as the entry of a private directory that is called after
/// its device; what is published is bound from there.
#[derive(Debug)]
pub struct Mounting {
    /// The connection to the mounter.
    mounter: OwnedFd,
    /// The work that takes long, by the number of the device: each has a line of its own, over which it is answered.
    awaited: Mutex<BTreeMap<u32, (Work, OwnedFd)>>,
    /// Which volumes' filesystems are kept, by the number of the device.
    kept: Mutex<BTreeMap<u32, VolumeId>>,
    /// The mounter's root, which is a tmpfs: it sees the nodes in it, but not what is mounted there.
    place: OwnedFd,
}

/// How long an operation waits for work on a filesystem. The helper ends in order within five seconds.
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
            Err(SysError { errno: Errno::NOENT, .. }) | Ok(_) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The root of the filesystem on a device, for path resolution; `None` if it is not kept here.
    fn root(&self, number: u32) -> SysResult<Option<OwnedFd>> {
        if self.keeps(number)? { file::open_entry(&self.place, &kept(number)).map(Some) } else { Ok(None) }
    }

    /// Has the filesystem on a device mounted, and returns the mount, which is attached to nothing.
    ///
    /// # Errors
    /// As [`Self::work`]. What is not the mount that was asked for ends the process: a mounter that hands it over is nobody's
    /// any more.
    fn make(&self, number: u32) -> SysResult<OwnedFd> {
        let node = mounter::node(number);
        {
            let _raised = raise(Capability::CAP_MKNOD)?;
            or_done(loopdevice::make_node(self.place.as_fd(), &node, number), Errno::EXIST)?;
        }
        let context = {
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            xfs::configure(&format!("/{node}"))?
        };
        let made = self.ask(number, Work::Mount, context);
        if !self.is_awaited(number) {
            self.forget(number);
        }
        match made? {
            Some(mount) if xfs::is_mount_of(&mount, number)? => Ok(mount),
            Some(_) => end("it handed over something else than a mount"),
            None => end("it said that there is a mount, and there is none"),
        }
    }

    /// Has something done to the mounted filesystem on a device.
    ///
    /// # Errors
    /// The kernel's, if that fails; `INPROGRESS` when it takes longer than four seconds: it goes on, and the next call waits
    /// for it first.
    pub fn work(&self, number: u32, work: Work) -> SysResult<()> {
        let root = self.root(number)?.ok_or(SysError::of(Errno::NXIO))?;
        let root = file::open(root, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.ask(number, work, root).map(drop)
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

    /// Thaws a filesystem that was left frozen, unless whoever froze it has thawed it by now: then its pod may have frozen
    /// it.
    pub fn thaw(&self, number: u32) -> SysResult<()> {
        match self.finish(number) {
            Some((Work::Settle, Ok(_))) => Ok(()),
            Some((Work::Settle, Err(error))) if error.errno != Errno::INPROGRESS => Ok(()),
            _ => self.work(number, Work::Thaw),
        }
    }

    /// Returns whether something that was to be done to the filesystem on a device takes long.
    fn is_awaited(&self, number: u32) -> bool {
        lock(&self.awaited).contains_key(&number)
    }

    /// Waits for what was to be done to the filesystem on a device and took long, and returns what it was, and the answer.
    fn finish(&self, number: u32) -> Option<(Work, SysResult<Option<OwnedFd>>)> {
        let (work, line) = lock(&self.awaited).remove(&number)?;
        Some((work, self.answer(number, work, line)))
    }

    /// Asks for work on what goes with it, which is not kept: it would keep the filesystem.
    fn ask(&self, number: u32, work: Work, with: OwnedFd) -> SysResult<Option<OwnedFd>> {
        if let Some((before, answered)) = self.finish(number)
            && (self.is_awaited(number) || before == Work::Mount && work == Work::Mount)
        {
            return answered;
        }
        // Whatever else was done before this call has nothing to say about now.
        let request = bulkhead_protocol::encode(&work).map_err(|_| SysError::of(Errno::INVAL))?;
        let (line, other) = packet::pair()?;
        packet::set_receive_timeout(&line, Some(PATIENCE))?;
        packet::set_send_timeout(&self.mounter, PATIENCE)?;
        {
            // What all processes of the same user have in flight counts, unless this one has the capability (unix(7)).
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            match packet::send(&self.mounter, &[0], Some(other.as_fd())) {
                // It has ended, and the helper is about to: what else is in progress is answered before.
                Err(SysError { errno: Errno::AGAIN | Errno::PIPE | Errno::CONNRESET, .. }) => {
                    return Err(Errno::INPROGRESS).by("the mounter");
                }
                sent => sent?,
            }
            packet::send(&line, &request, Some(with.as_fd()))?;
        }
        drop((other, with));
        self.answer(number, work, line)
    }

    /// Waits for the answer over a line: the mount, if it comes with one. `INPROGRESS` if it takes long, or nobody is left to
    /// give one.
    fn answer(&self, number: u32, work: Work, line: OwnedFd) -> SysResult<Option<OwnedFd>> {
        let mut answer = [0; 4];
        loop {
            match packet::receive_with_descriptor(&line, &mut answer) {
                Ok((Received::Packet(4), mount)) => {
                    return match i32::from_ne_bytes(answer) {
                        0 => Ok(mount),
                        errno => Err(Errno::from_raw_os_error(errno.clamp(1, 4095))).by("the mounter"),
                    };
                }
                Err(SysError { errno: Errno::INTR, .. }) => {}
                Err(SysError { errno: Errno::AGAIN, .. }) => {
                    lock(&self.awaited).insert(number, (work, line));
                    break;
                }
                Ok((Received::Closed, _)) | Err(SysError { errno: Errno::CONNRESET, .. }) => break,
                Err(error) => return Err(error),
                Ok((outcome, _)) => end(&format!("it does not answer outcome={outcome:?}")),
            }
        }
        Err(Errno::INPROGRESS).by("the mounter")
    }

    /// Does not wait any more for what was to be done to the filesystem on a device.
    fn forget(&self, number: u32) {
        let forgotten = lock(&self.awaited).remove(&number);
        // What was handed over and not received may be unmounted by this.
        drop(forgotten);
        // This can fail only if the node is already missing.
        let _ = file::remove(&self.place, &*mounter::node(number));
    }

    /// Has the filesystem on a device mounted, and keeps the mount, if `check` finds the device bound to what it should be. It
    /// is asked again once the filesystem is mounted, as nobody can bind the device anew from then on.
    pub fn mount(
        &self,
        number: u32,
        volume: &VolumeId,
        check: impl Fn() -> Result<(), Failure>,
    ) -> Result<Answer, Failure> {
        check()?;
        if self.keeps(number)? {
            return Ok(Answer::Done);
        }
        let mount = self.make(number)?;
        check()?;
        or_done(file::make_directory(&self.place, &kept(number), Mode::RWXU), Errno::EXIST)?;
        let entry = file::open_entry(&self.place, &kept(number))?;
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        mount::attach(&mount, &entry)?;
        lock(&self.kept).insert(number, volume.clone());
        Ok(Answer::Done)
    }

    /// Unmounts the filesystem on a device, if it is kept here.
    ///
    /// # Errors
    /// `BUSY` when it is still in use.
    pub fn release(&self, number: u32) -> SysResult<()> {
        // There may be much to write, and unmounting waits for all of it. One that has shut down has nothing to write.
        if let Err(error) = self.work(number, Work::Sync)
            && error.errno == Errno::INPROGRESS
        {
            return Err(error);
        }
        self.forget(number);
        while self.keeps(number)? {
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            // The mounter may not have closed its own descriptor yet, and who asks for the usage has one for a moment.
            with_patience(Errno::BUSY, || mount::unmount_entry(self.place.as_fd(), &kept(number)))?;
        }
        lock(&self.kept).remove(&number);
        or_done(file::remove_directory(&self.place, &kept(number)), Errno::NOENT)
    }
}

/// Locks a table, which is held for memory only.
fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process: what the mounter does next is nobody's guess.
fn end(why: &str) -> ! {
    log::last_words(&format!("the helper exits: it cannot go on with a mounter: {why}"));
    std::process::exit(1);
}

/// The name under which the filesystem on a device is kept.
fn kept(number: u32) -> String {
    format!("filesystem{number}")
}
