//! The second process. It empties deleted volumes, so it walks what pods wrote; it sees only the pools, and cannot mount.
//!
//! A volume's data is hostile: links, fifos, device nodes, odd names, immutable files, trees of any depth, and pods may
//! still write to it. So nothing is followed, ".." is never trusted, and what lies deeper than a few dozen levels is first
//! moved to the top: that bounds descriptors and memory, however deep and wide the tree is, and needs no free space in a
//! full pool. A job that takes long is interrupted, so that it keeps no other waiting.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use bulkhead_protocol::Text;
use rustix::fs::{FileType, OFlags};
use serde::{Deserialize, Serialize};

use crate::capabilities::EMPTIER;
use crate::sys::capability::{allow, raise};
use crate::sys::file;
use crate::sys::socket::{self, Received};
use crate::sys::{Errno, Result as SysResult};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// A directory in a pool that is to be removed with everything in it.
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
    /// Why it is not done, if it is not.
    pub errno: Option<i32>,
}

/// Does one job after another, in a jail that holds only the pools. Returns when the server is gone.
pub fn run(server: &OwnedFd, pools: &[Option<OwnedFd>]) -> Result<(), String> {
    let mut buffer = [0; bulkhead_protocol::MAX_PACKET];
    let mut moved = 0;
    loop {
        let length = match socket::receive(server, &mut buffer) {
            Ok(Received::Packet(length)) => length,
            Ok(Received::Closed) => return Ok(()),
            Ok(Received::Truncated) => return Err("the emptier received a packet that is too long".to_owned()),
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(format!("the emptier cannot receive from the server: {errno}")),
        };
        let job = buffer.get(..length).and_then(|packet| bulkhead_protocol::decode::<Job>(packet).ok());
        let job = job.ok_or("the emptier received a packet that is not a job")?;
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
    let _allowed = allow(EMPTIER);
    let _raised = EMPTIER.iter().map(|capability| raise(*capability)).collect::<SysResult<Vec<_>>>()?;
    let top = match file::open(pool, name, DIRECTORY) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return file::remove(pool, name),
        Err(errno) => return Err(errno),
    };
    // A directory of another project cannot be moved into one that passes its own project on (EXDEV).
    file::clear_flags(&top, file::PROJECT_INHERIT)?;
    let mut emptying = Emptying { top: &top, moved, begun: Instant::now() };
    loop {
        match file::remove_directory(pool, name) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => emptying.empty(&top, 0)?,
            other => return other,
        }
    }
}

/// To what depth directories are emptied where they are.
const DEEPEST: u32 = 32;
/// How long one job may take before the next has its turn.
const PATIENCE: Duration = Duration::from_secs(2);

struct Emptying<'a> {
    top: &'a OwnedFd,
    /// The last number used for a name at the top; none is tried twice.
    moved: &'a mut u64,
    begun: Instant,
}

impl Emptying<'_> {
    /// Removes what is in a directory. Somebody may still write there: the next round removes what is left.
    fn empty(&mut self, directory: &OwnedFd, depth: u32) -> SysResult<()> {
        file::each_entry(directory, |name| {
            if self.begun.elapsed() > PATIENCE {
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
                // A helper that was killed left it there.
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
                // Links, fifos, sockets and nodes cannot be opened for that. Only a kernel that can set their flags by
                // name has any with flags.
                _ => file::clear_flags_at(parent, name, file::UNREMOVABLE)?,
            }
            remove()
        }
        other => other,
    }
}

/// Removes immutable and append-only flags.
fn allow_changes(file: impl AsFd) -> SysResult<()> {
    file::clear_flags(file, file::UNREMOVABLE)
}
