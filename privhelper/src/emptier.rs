//! The second process: it empties deleted volumes, so it walks what pods wrote. It sees the pools only, and cannot mount.
//!
//! A volume's data is hostile: links, fifos, device nodes, odd names, immutable files, trees of any depth, and it may
//! still be written to. So nothing is followed, ".." is never trusted, and what lies deeper than a few dozen levels is moved
//! to the top first: that bounds descriptors and memory, however deep and wide the tree is, and needs no room in a pool
//! that is full. A job that takes long is put back, so that it keeps no other waiting.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

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
    let mut moved = 0;
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
        let result = pool.ok_or(Errno::NOENT).and_then(|pool| work(pool, job.name.as_str(), &mut moved));
        let report = Report { errno: result.err().map(Errno::raw_os_error) };
        let packet = bulkhead_protocol::encode(&report).map_err(|error| error.to_string())?;
        socket::send(server, &packet, None).map_err(|errno| format!("the emptier cannot answer: {errno}"))?;
    }
}

fn work(pool: &OwnedFd, name: &str, moved: &mut u64) -> SysResult<()> {
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
    let attributes = file::attributes(&top)?;
    if attributes.flags & Attributes::PROJECT_INHERIT != 0 {
        file::set_attributes(&top, attributes.with_flags(attributes.flags & !Attributes::PROJECT_INHERIT))?;
    }
    let mut emptying = Emptying { top: &top, moved, deadline: Instant::now() + PATIENCE };
    loop {
        match file::remove_directory(pool, name) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => emptying.empty(&top, 0)?,
            other => return other,
        }
    }
}

/// How deep directories are emptied where they are.
const DEEPEST: u32 = 32;
/// How long one job may take before the next has its turn.
const PATIENCE: Duration = Duration::from_secs(2);

struct Emptying<'a> {
    top: &'a OwnedFd,
    /// Numbers for names at the top, so far; none is tried twice.
    moved: &'a mut u64,
    deadline: Instant,
}

impl Emptying<'_> {
    /// Removes what is in a directory. Somebody may still write there: what is left is met in the next round.
    fn empty(&mut self, directory: &OwnedFd, depth: u32) -> SysResult<()> {
        file::each_entry(directory, |name| {
            if Instant::now() > self.deadline {
                return Err(Errno::TIME);
            }
            match remove_file(directory, name) {
                Err(Errno::ISDIR) if depth >= DEEPEST => return self.move_up(directory, name),
                Err(Errno::ISDIR) => {}
                other => return other,
            }
            let inner = match file::open(directory, name, DIRECTORY) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
                inner => inner?,
            };
            self.empty(&inner, depth.saturating_add(1))?;
            match file::remove_directory(directory, name) {
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT | Errno::NOTDIR) => Ok(()),
                Err(Errno::PERM) => {
                    allow_changes(&inner)?;
                    allow_changes(directory)?;
                    file::remove_directory(directory, name)
                }
                other => other,
            }
        })
    }

    fn move_up(&mut self, from: &OwnedFd, name: &CStr) -> SysResult<()> {
        loop {
            *self.moved = self.moved.checked_add(1).ok_or(Errno::OVERFLOW)?;
            let to = self.moved.to_string();
            let rename = || file::rename_new(from, name, self.top, &to);
            match rename() {
                // Left there by a helper that was killed.
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => return Ok(()),
                Err(Errno::PERM) => {
                    allow_changes(from)?;
                    allow_changes(file::open(from, name, DIRECTORY)?)?;
                    return rename();
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
