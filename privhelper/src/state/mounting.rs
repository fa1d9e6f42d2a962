//! Filesystems in images: the connection to the process that mounts them, and the place in which their mounts are kept.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use caps::Capability;
use rustix::fs::{Mode, OFlags};

use super::{lock, lock_in_time, log};
use crate::mounter;
use crate::sys::capability::raise;
use crate::sys::socket::{self, Received};
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file, loopdevice, mount, with_patience, xfs};

/// What a pool has for filesystems in images. Each is mounted once, as the entry of a private directory that is called after
/// its device; what is published is bound from there.
#[derive(Debug)]
pub struct Mounting {
    /// The connection to the mounter. A request and its answer are one turn.
    mounter: Mutex<OwnedFd>,
    /// The mounter's root, which is a tmpfs: it sees the nodes in it, but not what is mounted there.
    place: OwnedFd,
}

impl Mounting {
    /// The mounter is at the other end of the socket, and has this place as its root.
    pub fn new(mounter: OwnedFd, place: OwnedFd) -> Self {
        Self { mounter: Mutex::new(mounter), place }
    }

    /// A copy of the connection, which is hung up when the mounter has ended.
    pub fn connection(&self) -> SysResult<OwnedFd> {
        file::duplicate(&*lock(&self.mounter))
    }

    /// Returns whether the filesystem on a device is kept here. It is not asked itself: it may have shut down, or never
    /// answer.
    pub fn keeps(&self, number: u32) -> SysResult<bool> {
        match file::open(&self.place, &kept(number), OFlags::PATH) {
            Err(SysError { errno: Errno::XDEV, .. }) => Ok(true),
            Err(SysError { errno: Errno::NOENT, .. }) | Ok(_) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The root of the filesystem on a device, for path resolution; `None` if it is not kept here.
    pub fn root(&self, number: u32) -> SysResult<Option<OwnedFd>> {
        if self.keeps(number)? { file::open_entry(&self.place, &kept(number)).map(Some) } else { Ok(None) }
    }

    /// Has the filesystem on a device mounted, and returns the mount, which is attached to nothing.
    ///
    /// # Errors
    /// The kernel's, if that fails; `BUSY` when others have been at it for two seconds. What is not the mount that was asked
    /// for ends the process: a mounter that hands it over is nobody's any more.
    pub fn make(&self, number: u32) -> SysResult<OwnedFd> {
        let mounter = lock_in_time(&self.mounter)?;
        let node = mounter::node(number);
        {
            let _raised = raise(Capability::CAP_MKNOD)?;
            match loopdevice::make_node(self.place.as_fd(), &node, number) {
                Ok(()) | Err(SysError { errno: Errno::EXIST, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let handed = ask(&mounter, number);
        // This can fail only if the node is already missing.
        let _ = file::remove(&self.place, &*node);
        let mount = handed?;
        if xfs::is_mount_of(&mount, number)? { Ok(mount) } else { end("it handed over something else than a mount") }
    }

    /// Keeps a mount of the filesystem on a device.
    pub fn keep(&self, number: u32, mount: &OwnedFd) -> SysResult<()> {
        match file::make_directory(&self.place, &kept(number), Mode::RWXU) {
            Ok(()) | Err(SysError { errno: Errno::EXIST, .. }) => {}
            Err(error) => return Err(error),
        }
        let entry = file::open_entry(&self.place, &kept(number))?;
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        mount::attach(mount, &entry)
    }

    /// Unmounts the filesystem on a device, if it is kept here.
    ///
    /// # Errors
    /// `BUSY` when it is still in use.
    pub fn release(&self, number: u32) -> SysResult<()> {
        while self.keeps(number)? {
            let _raised = raise(Capability::CAP_SYS_ADMIN)?;
            // The mounter may not have closed its own descriptor yet, and who asks for the usage has one for a moment.
            with_patience(Errno::BUSY, || mount::unmount_entry(self.place.as_fd(), &kept(number)))?;
        }
        match file::remove_directory(&self.place, &kept(number)) {
            Err(SysError { errno: Errno::NOENT, .. }) => Ok(()),
            removed => removed,
        }
    }
}

/// Asks the mounter for a mount. Without an answer, nobody knows what comes with the next one.
fn ask(mounter: &OwnedFd, number: u32) -> SysResult<OwnedFd> {
    match socket::send(mounter, &number.to_ne_bytes(), None) {
        Err(error) if matches!(error.errno, Errno::PIPE | Errno::CONNRESET) => {
            end(&format!("it takes no request error={error}"))
        }
        sent => sent?,
    }
    let mut answer = [0; 4];
    loop {
        match socket::receive_with_descriptor(mounter, &mut answer) {
            Ok((Received::Packet(4), descriptor)) => {
                return match (i32::from_ne_bytes(answer), descriptor) {
                    (0, Some(mount)) => Ok(mount),
                    (0, None) => end("it said that there is a mount, and there is none"),
                    (errno, _) => Err(Errno::from_raw_os_error(errno.clamp(1, 4095))).by("the mounter"),
                };
            }
            Err(SysError { errno: Errno::INTR, .. }) => {}
            Err(error) => end(&format!("it does not answer error={error}")),
            Ok(outcome) => end(&format!("it does not answer outcome={outcome:?}")),
        }
    }
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
