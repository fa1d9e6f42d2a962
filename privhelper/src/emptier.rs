//! The second process: it empties deleted volumes, so it walks what pods wrote. It sees the pools only, and cannot mount.
//!
//! A volume's data is hostile: links, fifos, device nodes, odd names, immutable files, trees of any depth, and it may
//! still be written to. So nothing is followed, ".." is never trusted, and deep trees are made flat: a directory inside
//! a directory is moved up to the top before it is emptied itself. That needs three descriptors and two buffers, however
//! deep and wide the tree is.

use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::Text;
use caps::Capability;
use rustix::fs::{FileType, OFlags};
use serde::{Deserialize, Serialize};

use crate::sys::capability::{drop_all_but, raise, verify_dropped};
use crate::sys::file::{self, Attributes};
use crate::sys::seccomp::{self, OnViolation, Process};
use crate::sys::socket::{self, Received};
use crate::sys::{Errno, Result as SysResult};

/// What the emptier may do: go where root may not without it, unlink what others own, and take immutable flags off.
pub const KEPT: [Capability; 3] =
    [Capability::CAP_DAC_OVERRIDE, Capability::CAP_FOWNER, Capability::CAP_LINUX_IMMUTABLE];

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// A directory in a pool that is to go, with all that is in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Job {
    /// Index of the pool.
    pub pool: u64,
    /// The directory's name.
    pub name: Text,
}

/// How a job ended.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// What kept it from being done.
    pub errno: Option<i32>,
}

/// The life of the process, in a jail that holds only the pools. Returns when the server is gone.
pub fn run(server: &OwnedFd, pools: &[Option<OwnedFd>], on_violation: OnViolation) -> Result<(), String> {
    drop_all_but(&KEPT).map_err(|errno| format!("the emptier cannot drop its privileges: {errno}"))?;
    let mut buffer = [0; bulkhead_protocol::MAX_PACKET];
    verify_dropped(&KEPT).map_err(|what| format!("the emptier still has more than it needs: {what}"))?;
    seccomp::install(Process::Emptier, on_violation)
        .map_err(|error| format!("the emptier's seccomp filter: {error}"))?;
    loop {
        let length = match socket::receive(server, &mut buffer) {
            Ok(Received::Packet(length)) => length,
            Ok(Received::Closed) => return Ok(()),
            Ok(Received::Truncated) => return Err("the emptier was sent too much".to_owned()),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(format!("the emptier cannot hear the server: {errno}")),
        };
        let job = buffer.get(..length).and_then(|packet| bulkhead_protocol::decode::<Job>(packet).ok());
        let job = job.ok_or("the emptier was sent what is no job")?;
        let pool = usize::try_from(job.pool).ok().and_then(|index| pools.get(index)).and_then(Option::as_ref);
        let result = pool.ok_or(Errno::NOENT).and_then(|pool| work(pool, job.name.as_str()));
        let report = Report { errno: result.err().map(Errno::raw_os_error) };
        let packet = bulkhead_protocol::encode(&report).map_err(|error| error.to_string())?;
        socket::send(server, &packet, None).map_err(|errno| format!("the emptier cannot answer: {errno}"))?;
    }
}

fn work(pool: &OwnedFd, name: &str) -> SysResult<()> {
    if !name.starts_with('.') || name.contains('/') {
        return Err(Errno::INVAL);
    }
    let _raised = (raise(KEPT[0])?, raise(KEPT[1])?, raise(KEPT[2])?);
    let top = match file::open(pool, name, DIRECTORY) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return file::remove(pool, name),
        Err(errno) => return Err(errno),
    };
    // Moving a directory of another project into one that hands down its own is refused (EXDEV).
    let attributes = file::attributes(&top);
    if let Ok(attributes) = attributes
        && attributes.flags & Attributes::PROJECT_INHERIT != 0
    {
        let flags = attributes.flags & !Attributes::PROJECT_INHERIT;
        file::set_attributes(&top, attributes.with_flags(flags))?;
    }
    empty_flat(&top)?;
    file::remove_directory(pool, name)
}

/// Empties `top`: its files go, its directories are emptied one level, and theirs are moved up here first.
fn empty_flat(top: &OwnedFd) -> SysResult<()> {
    let mut moved = 0_u64;
    loop {
        let mut found = false;
        file::each_entry(top, |name| {
            found = true;
            match remove_file(top, name) {
                Err(Errno::ISDIR) => {}
                other => return other,
            }
            let directory = file::open(top, name, DIRECTORY)?;
            file::each_entry(&directory, |inner| match remove_file(&directory, inner) {
                Err(Errno::ISDIR) => move_up(&directory, inner, top, &mut moved),
                other => other,
            })?;
            match file::remove_directory(top, name) {
                // Somebody still writes there: it is met again in the next round.
                Err(Errno::NOTEMPTY) => Ok(()),
                Err(Errno::PERM) => {
                    allow_changes(&directory)?;
                    allow_changes(top)?;
                    file::remove_directory(top, name)
                }
                other => other,
            }
        })?;
        if !found {
            return Ok(());
        }
    }
}

/// Removes an entry that is no directory (`ISDIR` if it is one), immutable or not.
fn remove_file(parent: &OwnedFd, name: &std::ffi::CStr) -> SysResult<()> {
    let remove = || file::remove(parent, name);
    match remove() {
        Err(Errno::NOENT) => Ok(()),
        // A flag on the entry or on its directory; for a directory Linux may say EPERM too.
        Err(Errno::PERM) => {
            allow_changes(parent)?;
            if is_directory(parent, name)? {
                return Err(Errno::ISDIR);
            }
            allow_changes(file::open(parent, name, OFlags::RDONLY)?)?;
            remove()
        }
        other => other,
    }
}

fn move_up(from: &OwnedFd, name: &std::ffi::CStr, top: &OwnedFd, moved: &mut u64) -> SysResult<()> {
    loop {
        *moved = moved.checked_add(1).ok_or(Errno::OVERFLOW)?;
        let free = format!("{moved}");
        let rename = || rustix::fs::renameat_with(from, name, top, &*free, rustix::fs::RenameFlags::NOREPLACE);
        match rename() {
            // The name is taken by something the pod wrote: the next number.
            Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::PERM) => {
                allow_changes(from)?;
                allow_changes(file::open(from, name, DIRECTORY)?)?;
                match rename() {
                    Err(Errno::EXIST) => {}
                    other => return other,
                }
            }
            other => return other,
        }
    }
}

/// Takes immutable and append-only flags off.
fn allow_changes(file: impl AsFd) -> SysResult<()> {
    let attributes = file::attributes(&file)?;
    if attributes.flags & Attributes::UNREMOVABLE == 0 {
        return Ok(());
    }
    let flags = attributes.flags & !Attributes::UNREMOVABLE;
    file::set_attributes(&file, attributes.with_flags(flags))
}

fn is_directory(parent: &OwnedFd, name: &std::ffi::CStr) -> SysResult<bool> {
    Ok(file::status_at(parent, name)?.file_type == FileType::Directory)
}
