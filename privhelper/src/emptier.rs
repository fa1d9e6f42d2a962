//! The second process: it empties deleted volumes, so it walks what pods wrote. It sees the pools only, and cannot mount.
//!
//! A volume's data is hostile: links, fifos, device nodes, odd names, immutable files, trees of any depth, and it may
//! still be written to. So nothing is followed, ".." is never trusted, and deep trees are made flat: a directory inside
//! a directory is moved to a place that no pod can reach before it is emptied itself. That needs a few descriptors and
//! two buffers, however deep and wide the tree is. A job that takes long is put back, so that it keeps no other waiting.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bulkhead_protocol::Text;
use caps::Capability;
use rustix::fs::{FileType, Mode, OFlags};
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
    // What is made in here from now on is charged to nobody: a volume may be full, and emptying it takes directories.
    let attributes = file::attributes(&top)?;
    if attributes.flags & Attributes::PROJECT_INHERIT != 0 {
        file::set_attributes(&top, attributes.with_flags(attributes.flags & !Attributes::PROJECT_INHERIT))?;
    }
    match file::make_directory(&top, FLAT, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno),
    }
    let mut flat = Flat { place: file::open(&top, FLAT, DIRECTORY)?, moved: 0, deadline: Instant::now() + PATIENCE };
    flat.empty(&top)?;
    file::remove_directory(&top, FLAT)?;
    file::remove_directory(pool, name)
}

/// The directory of a doomed volume in which its directories lie side by side.
const FLAT: &str = "flat";
/// How long one job may take before the next has its turn.
const PATIENCE: Duration = Duration::from_secs(2);

struct Flat {
    place: OwnedFd,
    /// Numbers for names, so far.
    moved: u64,
    deadline: Instant,
}

impl Flat {
    fn empty(&mut self, top: &OwnedFd) -> SysResult<()> {
        self.flatten(top)?;
        let mut found = true;
        while found {
            found = false;
            let place = rustix::io::fcntl_dupfd_cloexec(&self.place, 0)?;
            file::each_entry(&place, |name| {
                found = true;
                let directory = file::open(&place, name, DIRECTORY)?;
                self.flatten(&directory)?;
                match file::remove_directory(&place, name) {
                    // Somebody still writes there: it is met again in the next round.
                    Err(Errno::NOTEMPTY) => Ok(()),
                    Err(Errno::PERM) => {
                        allow_changes(&directory)?;
                        file::remove_directory(&place, name)
                    }
                    other => other,
                }
            })?;
        }
        Ok(())
    }

    /// Removes the files of a directory first, which makes room, and then moves its directories.
    fn flatten(&mut self, directory: &OwnedFd) -> SysResult<()> {
        let deadline = self.deadline;
        file::each_entry(directory, |name| {
            if Instant::now() > deadline {
                return Err(Errno::TIME);
            }
            match remove_file(directory, name) {
                Err(Errno::ISDIR) => Ok(()),
                other => other,
            }
        })?;
        file::each_entry(directory, |name| {
            if name.to_bytes() == FLAT.as_bytes() && self.is_in(directory)? {
                Ok(())
            } else {
                self.take(directory, name)
            }
        })
    }

    /// Whether this is the directory that holds the flat place, where the place itself must stay.
    fn is_in(&self, directory: &OwnedFd) -> SysResult<bool> {
        let inside = file::status_at(directory, FLAT)?;
        Ok(inside.id == file::status(&self.place)?.id)
    }

    fn take(&mut self, from: &OwnedFd, name: &CStr) -> SysResult<()> {
        loop {
            self.moved = self.moved.checked_add(1).ok_or(Errno::OVERFLOW)?;
            let rename = |to: &str| file::rename_new(from, name, &self.place, to);
            let moved = rename(&self.moved.to_string());
            match moved {
                // Left there by a helper that was killed.
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
                Err(Errno::PERM) => {
                    allow_changes(from)?;
                    allow_changes(file::open(from, name, DIRECTORY)?)?;
                    return rename(&self.moved.to_string());
                }
                other => return other,
            }
        }
    }
}

/// Removes an entry that is no directory (`ISDIR` if it is one), immutable or not.
fn remove_file(parent: &OwnedFd, name: &CStr) -> SysResult<()> {
    let remove = || file::remove(parent, name);
    match remove() {
        Err(Errno::NOENT) => Ok(()),
        // A flag on the entry or on its directory; for a directory Linux may say EPERM too.
        Err(Errno::PERM) => {
            allow_changes(parent)?;
            match file::status_at(parent, name)?.file_type {
                FileType::Directory => return Err(Errno::ISDIR),
                FileType::RegularFile => allow_changes(file::open(parent, name, OFlags::RDONLY)?)?,
                // Links, fifos, sockets and nodes cannot be opened for it; only a kernel that can set their flags has them.
                _ => file::clear_flags_at(parent, name, Attributes::UNREMOVABLE)?,
            }
            remove()
        }
        other => other,
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
