//! The second process of a pool. It empties deleted volumes, so it walks what pods wrote; it sees only the pool, and
//! cannot mount. Each pool has its own, so that a filesystem that does not answer holds up no other.
//!
//! A volume's data is hostile: links, fifos, device nodes, odd names, immutable files, trees of any depth, and pods may
//! still write to it. So no link is followed, ".." is never trusted, and anything deeper than a few dozen levels is
//! first moved to the top: this bounds descriptors and memory, however deep and wide the tree is. A full pool, or a
//! full quota, may have no room for another name at the top: the deep directory then serves as the top for a while.
//! What cannot be removed does not stop the rest from being removed, and a job that takes long is interrupted, so that
//! others need not wait, and later resumes where it was. The emptier rests more than it works: the filesystem is not
//! its own.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bulkhead_protocol::Text;
use caps::Capability::{self, CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_LINUX_IMMUTABLE};
use rustix::fs::{FileType, OFlags};
use serde::{Deserialize, Serialize};

use crate::capabilities::EMPTIER;
use crate::state::layout;
use crate::sys::capability::{allow, where_refused};
use crate::sys::file;
use crate::sys::packet::Received;
use crate::sys::xflags::{self, PROJECT_INHERIT, UNREMOVABLE};
use crate::sys::{Errno, Error as SysError, Result as SysResult, packet, walk};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// What it takes to look up or open what is closed to root.
const OPEN: &[Capability] = &[CAP_DAC_OVERRIDE];
/// What it takes to remove it or to move it, also where a sticky bit leaves that to its owner.
const REMOVE: &[Capability] = &[CAP_DAC_OVERRIDE, CAP_FOWNER];
/// What it takes to clear flags of what others own, and such as keep it from being removed. By name, it also has to be looked
/// up, twice.
const CHANGE: &[Capability] = &[CAP_FOWNER, CAP_LINUX_IMMUTABLE];

/// A packet that says: there is something to empty.
pub const WAKE: u8 = 0;
/// A packet that says: there is something to empty, which may have kept the name of a volume; look at the modes of
/// those too.
pub const WAKE_IN_PLACE: u8 = 1;

/// What has become of a directory that was to be removed with everything in it.
#[derive(Debug, Serialize, Deserialize)]
pub struct Report {
    /// Its name in the pool.
    pub name: Text,
    /// What has become of it.
    pub outcome: Outcome,
}

/// See [`Report`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Work on it begins.
    Begun,
    /// Nothing is left of it.
    Emptied,
    /// It takes long, and others are waiting.
    Unfinished,
    /// It could not be emptied because of this error, and is tried again later.
    Failed(i32),
}

/// How long to wait before trying again what could not be emptied.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How long to wait for packets before going on with what is unfinished.
const NEXT_TURN: Duration = Duration::from_millis(1);
/// How many packets are received before anything is done: as many as a socket may hold.
const MOST_PACKETS: usize = 512;

/// Removes what is deleted in the pool, whenever it is woken, in a jail that holds only the pool. It finds by itself
/// what that is; it does not begin before it is woken for the first time, when the keeper knows of all of it. Returns
/// when the keeper is gone.
pub fn run(keeper: &OwnedFd, pool: &OwnedFd) -> Result<(), String> {
    let (mut moved, mut unfinished, mut in_place, mut pause) = (0, Unfinished::new(), false, None);
    while let Some(woken_in_place) = wait(keeper, pause)? {
        in_place |= woken_in_place;
        let Ok(names) = find(pool, in_place) else {
            // The pool's status says what is wrong with its filesystem.
            pause = Some(RETRY_INTERVAL);
            continue;
        };
        unfinished.retain(|name, _| names.contains(name));
        (in_place, pause) = (in_place && !names.is_empty(), None);
        for name in names {
            report(keeper, &name, Outcome::Begun)?;
            let mut tops = unfinished.remove(&name).unwrap_or_default();
            let outcome = match work(pool, &name, &mut moved, &mut tops) {
                Ok(()) => Outcome::Emptied,
                Err(SysError { errno: LONG, .. }) => Outcome::Unfinished,
                Err(error) => Outcome::Failed(error.errno.raw_os_error()),
            };
            if outcome == Outcome::Unfinished && unfinished.len() < MOST_UNFINISHED {
                unfinished.insert(name.clone(), tops);
            }
            match outcome {
                Outcome::Unfinished => pause = Some(NEXT_TURN),
                Outcome::Failed(_) => pause = pause.or(Some(RETRY_INTERVAL)),
                Outcome::Begun | Outcome::Emptied => {}
            }
            report(keeper, &name, outcome)?;
        }
    }
    Ok(())
}

/// Waits to be woken, for so long at most, and returns whether there may be something deleted in its place; `None` when
/// the keeper is gone. All packets are received that are there: a tenant may keep one job from ever being finished.
fn wait(keeper: &OwnedFd, mut pause: Option<Duration>) -> Result<Option<bool>, String> {
    let broken = |error: SysError| format!("the emptier cannot receive from the keeper: {error}");
    let (mut packet, mut in_place) = ([0; 1], false);
    for _ in 0..MOST_PACKETS {
        packet::set_timeout(keeper, packet::Timeout::Recv, pause).map_err(broken)?;
        match packet::receive(keeper, &mut packet) {
            Ok(Received::Packet(_)) => {
                in_place |= packet == [WAKE_IN_PLACE];
                pause = Some(NEXT_TURN);
            }
            Ok(Received::Closed) => return Ok(None),
            Ok(Received::Truncated) => return Err("the emptier received a packet that is too long".to_owned()),
            Err(SysError { errno: Errno::AGAIN, .. }) => break,
            Err(SysError { errno: Errno::INTR | Errno::NOBUFS | Errno::NOMEM, .. }) => {}
            Err(error) => return Err(broken(error)),
        }
    }
    Ok(Some(in_place))
}

fn report(keeper: &OwnedFd, name: &str, outcome: Outcome) -> Result<(), String> {
    let packet =
        bulkhead_protocol::encode(&Report { name: Text::new(name), outcome }).map_err(|error| error.to_string())?;
    packet::send(keeper, &packet, None).map_err(|error| format!("the emptier cannot report: {error}"))
}

/// The names of what is deleted in the pool: by their form, and if some are deleted in place, by the mode that says so.
/// Only root can write to the pool itself.
fn find(pool: &OwnedFd, in_place: bool) -> SysResult<Vec<String>> {
    let mut names = Vec::new();
    walk::each_entry(pool, |name| {
        let status = || file::status_at(pool, name).is_ok_and(|status| layout::is_deleted_in_place(&status));
        if let Ok(name) = name.to_str()
            && (layout::is_deleted(name) || in_place && status())
        {
            names.push(name.to_owned());
        }
        Ok(())
    })?;
    Ok(names)
}

fn work(pool: &OwnedFd, name: &str, moved: &mut u64, tops: &mut Tops) -> SysResult<()> {
    let _allowed = allow(EMPTIER);
    let top = match open(pool, name, DIRECTORY) {
        Ok(top) => top,
        Err(SysError { errno: Errno::NOENT, .. }) => return Ok(()),
        // The pool is root's.
        Err(SysError { errno: Errno::NOTDIR | Errno::LOOP, .. }) => return file::remove(pool, name),
        Err(error) => return Err(error),
    };
    let begun = Instant::now();
    let mut emptying = Emptying { moved, begun, rested: begun, failed: None, tops };
    loop {
        match (file::remove_directory(pool, name), emptying.failed) {
            (Err(SysError { errno: Errno::NOTEMPTY | Errno::EXIST, .. }), None) => emptying.walk(&top)?,
            (Err(SysError { errno: Errno::NOTEMPTY | Errno::EXIST, .. }), Some(errno)) => {
                return Err(SysError::of(errno));
            }
            (other, _) => return other,
        }
    }
}

/// The progress of jobs that took long: each resumes where it was, or it would never finish a tree too deep for a
/// single turn.
type Unfinished = BTreeMap<String, Tops>;
type Tops = Vec<Rc<OwnedFd>>;
/// For how many jobs this is kept; any other starts at the volume's top again, until one of these is done.
const MOST_UNFINISHED: usize = 16;
/// How many directories of each job are kept open, namely the deepest. In a full pool, XFS takes a hundred times longer
/// for a rename that fails than for one that succeeds, so getting down to them again takes long.
const MOST_TOPS: usize = 32;

/// The depth down to which directories are emptied in place.
const DEEPEST: u32 = 32;
/// How long one job may take before the next gets its turn.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it works at a time, and how long it then rests, so that others have the journal to themselves. The next
/// sync by anybody writes all that was removed at a time, so that must be little. A low priority would not do: others
/// waiting for a lock of the filesystem that it holds would have to wait until it gets the processor.
const PACE: (Duration, Duration) = (Duration::from_micros(250), Duration::from_micros(2250));
/// Stops the walk through a directory: it takes long, and others are waiting.
const LONG: Errno = Errno::TIME;
/// Stops the walk through a directory: it continues in the last of [`Emptying::tops`].
const DEEPER: Errno = Errno::XFULL;

struct Emptying<'a> {
    /// The last number used for a name at the top; none is tried twice.
    moved: &'a mut u64,
    begun: Instant,
    /// When it last rested.
    rested: Instant,
    /// Why something could not be removed. The rest is removed all the same.
    failed: Option<Errno>,
    /// Directories that are too deep and for whose names there was no room at the top: each lies in the one before it.
    tops: &'a mut Tops,
}

impl Emptying<'_> {
    /// Removes everything that can be removed. Somebody may still write there: the next walk removes what is left.
    fn walk(&mut self, volume: &OwnedFd) -> SysResult<()> {
        loop {
            let deepest = self.tops.last().cloned();
            let top = deepest.as_deref().unwrap_or(volume);
            // A directory with another project cannot be moved into one whose entries inherit its own project (EXDEV).
            clear_flags(top, PROJECT_INHERIT)?;
            match self.empty(top, top, 0) {
                // The walk through the one before it, or through the volume, finds it again, now empty.
                Ok(()) if deepest.is_some() => drop(self.tops.pop()),
                Err(SysError { errno: DEEPER, .. }) => {}
                result => return result,
            }
        }
    }

    fn empty(&mut self, top: &OwnedFd, directory: &OwnedFd, depth: u32) -> SysResult<()> {
        walk::each_entry(directory, |name| match self.remove(top, directory, name, depth) {
            Err(error) if error.errno != LONG && error.errno != DEEPER => {
                self.failed.get_or_insert(error.errno);
                Ok(())
            }
            result => result,
        })
    }

    /// Removes an entry with everything in it.
    fn remove(&mut self, top: &OwnedFd, directory: &OwnedFd, name: &CStr, depth: u32) -> SysResult<()> {
        self.pace()?;
        match remove_file(directory, name) {
            Err(SysError { errno: Errno::ISDIR, .. }) => {}
            other => return other,
        }
        if depth >= DEEPEST {
            return match remove_directory(directory, name) {
                Err(SysError { errno: Errno::NOTEMPTY | Errno::EXIST, .. }) => self.move_up(top, directory, name),
                other => other,
            };
        }
        match open(directory, name, DIRECTORY) {
            Err(SysError { errno: Errno::NOENT | Errno::NOTDIR | Errno::LOOP, .. }) => return Ok(()),
            inner => self.empty(top, &inner?, depth.saturating_add(1))?,
        }
        match remove_directory(directory, name) {
            Err(SysError { errno: Errno::NOTEMPTY | Errno::EXIST, .. }) => Ok(()),
            other => other,
        }
    }

    /// Rests when it is time to, and ends the turn when it has taken too long.
    fn pace(&mut self) -> SysResult<()> {
        if self.begun.elapsed() > PATIENCE {
            return Err(SysError::of(LONG));
        }
        let (work, rest) = PACE;
        if self.rested.elapsed() > work {
            std::thread::sleep(rest);
            self.rested = Instant::now();
        }
        Ok(())
    }

    fn move_up(&mut self, top: &OwnedFd, from: &OwnedFd, name: &CStr) -> SysResult<()> {
        loop {
            *self.moved = self.moved.checked_add(1).ok_or(SysError::of(Errno::OVERFLOW))?;
            let to = self.moved.to_string();
            match where_refused(REMOVE, || walk::rename_new(from, name, top, &to)) {
                // A helper that was killed left it there, or a pod anticipated the name, perhaps a million times.
                Err(SysError { errno: Errno::EXIST, .. }) => self.pace()?,
                Err(SysError { errno: Errno::NOENT, .. }) => return Ok(()),
                // The pool or the volume's own quota is full, or the name is encrypted with a key that is gone (ext4).
                // Not after a failure: if it happened down there, it would lead here again and again.
                Err(SysError { errno: Errno::NOSPC | Errno::DQUOT | Errno::NOKEY, .. }) if self.failed.is_none() => {
                    if self.tops.len() >= MOST_TOPS {
                        self.tops.remove(0);
                    }
                    self.tops.push(Rc::new(open(from, name, DIRECTORY)?));
                    return Err(SysError::of(DEEPER));
                }
                other => return other,
            }
        }
    }
}

/// Removes an empty directory, immutable or not.
fn remove_directory(parent: &OwnedFd, name: &CStr) -> SysResult<()> {
    let remove = || where_refused(REMOVE, || file::remove_directory(parent, name));
    match remove() {
        Err(SysError { errno: Errno::NOENT | Errno::NOTDIR, .. }) => Ok(()),
        Err(SysError { errno: Errno::PERM, .. }) => {
            clear_flags(parent, UNREMOVABLE)?;
            clear_flags(open(parent, name, DIRECTORY)?, UNREMOVABLE)?;
            remove()
        }
        other => other,
    }
}

/// Removes an entry that is not a directory (`ISDIR` if it is one), immutable or not.
fn remove_file(parent: &OwnedFd, name: &CStr) -> SysResult<()> {
    let remove = || where_refused(REMOVE, || file::remove(parent, name));
    match remove() {
        Err(SysError { errno: Errno::NOENT, .. }) => Ok(()),
        // A flag on the entry or on its directory; for a directory Linux may also return EPERM.
        Err(SysError { errno: Errno::PERM, .. }) => {
            clear_flags(parent, UNREMOVABLE)?;
            match where_refused(OPEN, || file::status_at(parent, name))?.file_type {
                FileType::Directory => return Err(SysError::of(Errno::ISDIR)),
                FileType::RegularFile => clear_flags(open(parent, name, OFlags::RDONLY)?, UNREMOVABLE)?,
                // Links, fifos, sockets and nodes cannot be opened for that. They can have flags only on a kernel and a
                // filesystem that can set these by name; otherwise it was the directory's flag.
                _ => match where_refused(EMPTIER, || xflags::clear_flags_at(parent, name, UNREMOVABLE)) {
                    Err(SysError { errno: Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOTTY, .. }) => {}
                    other => other?,
                },
            }
            remove()
        }
        other => other,
    }
}

/// Clears flags of an open file, if any of them are set.
fn clear_flags(file: impl AsFd, flags: u32) -> SysResult<()> {
    let left = xflags::attributes_without(&file, flags)?;
    left.map_or(Ok(()), |left| where_refused(CHANGE, || xflags::set_attributes(&file, left)))
}

/// Opens an entry, which may be closed to root.
fn open(parent: &OwnedFd, name: impl file::Name, flags: OFlags) -> SysResult<OwnedFd> {
    where_refused(OPEN, || file::open(parent, name, flags))
}

#[cfg(test)]
mod tests;
