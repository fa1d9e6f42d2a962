//! A walk through what pods have left in a volume, which may be hostile and may change meanwhile. Nothing is opened but
//! directories and regular files, no link is followed, no mount is crossed, and one directory is open at a time.

use std::collections::HashSet;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use bulkhead_privhelper::file::{self, FileId};
use bulkhead_privhelper::walk;
use bulkhead_privhelper::xflags::{self, FILE_GETATTR, FILE_SETATTR, PROJECT_INHERIT};
use bulkhead_privhelper::{Called, SysError};
use linux_raw_sys::general::file_attr;
use rustix::fs::{FileType, OFlags, RawDir, SeekFrom};
use rustix::io::Errno;

/// How deep a tree may be: what is remembered of the way down takes 24 bytes a level.
const DEEPEST: usize = 1 << 20;
/// How often somebody who waits hears how far it is.
const NEWS: Duration = Duration::from_secs(5);

/// Puts what lies below a directory into a project.
pub struct Walk<'a> {
    /// Whose tree it is, for whoever waits.
    pub title: &'a str,
    /// The project.
    pub project: u32,
    /// Whether a project belongs to another volume of the pool.
    pub is_of_another: &'a dyn Fn(u32) -> bool,
    /// Whether anything is to be changed, rather than only counted.
    pub writes: bool,
    /// How many entries are gone through before it is taken for one that never ends.
    pub most: u64,
    /// What was found so far.
    pub found: Found,
    /// When there was last news.
    pub told: Instant,
}

/// What a walk has found, in numbers of entries.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// All of them.
    pub entries: u64,
    /// Those that were in another project, or did not hand theirs on.
    pub moved: u64,
    /// Links, pipes and nodes, which this kernel or filesystem cannot put into a project.
    pub uncharged: u64,
    /// Those that are in the project of another volume, because they have a name there as well.
    pub shared: u64,
    /// Those that something is mounted on. What is below cannot be seen.
    pub covered: u64,
    /// Those that could not be changed.
    pub failed: u64,
    /// The first of these, and why.
    pub first: Option<String>,
}

/// A directory above the one that is open, and where to go on reading it.
struct Level {
    id: FileId,
    next: u64,
}

impl Found {
    /// Returns whether nothing was left out that counts towards a limit.
    pub fn is_complete(&self) -> bool {
        (self.shared, self.covered, self.failed) == (0, 0, 0)
    }
}

impl Walk<'_> {
    /// Goes through everything below a directory, each directory before what is in it: what is made meanwhile inherits the
    /// project. Each directory is gone through once: somebody who keeps moving one to where the walk is yet to come does
    /// not keep it from ending.
    ///
    /// # Errors
    /// `AGAIN` if a directory was moved while it was open, is met twice, or there are more entries than there may be.
    /// Whoever repeats the walk finds nothing to do in what was done.
    pub fn below(&mut self, top: &OwnedFd) -> Result<(), SysError> {
        let read = OFlags::RDONLY | OFlags::DIRECTORY;
        let (mut above, mut from, mut met) = (Vec::new(), 0, HashSet::new());
        let mut current = file::open(top, ".", read)?;
        loop {
            if let Some((child, next)) = self.read(&current, from, above.len() < DEEPEST)? {
                if !met.insert(file::status(&child)?.id.inode) {
                    return Err(SysError::of(Errno::AGAIN));
                }
                above.push(Level { id: file::status(&current)?.id, next });
                (current, from) = (child, 0);
                continue;
            }
            let Some(Level { id, next }) = above.pop() else { return Ok(()) };
            let parent = walk::open_at_start(&format!("/proc/self/fd/{}/..", current.as_raw_fd()), read)?;
            if file::status(&parent)?.id != id {
                return Err(SysError::of(Errno::AGAIN));
            }
            (current, from) = (parent, next);
        }
    }

    /// Goes through a directory's entries from some place on, up to the next that is a directory. Returns that, and the
    /// place after it.
    fn read(&mut self, directory: &OwnedFd, from: u64, descends: bool) -> Result<Option<(OwnedFd, u64)>, SysError> {
        rustix::fs::seek(directory, SeekFrom::Start(from)).by("lseek")?;
        let mut buffer = [MaybeUninit::uninit(); 4 << 10];
        let mut entries = RawDir::new(directory, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry.by("getdents64")?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.found.entries = self.found.entries.saturating_add(1);
            if self.found.entries > self.most {
                return Err(SysError::of(Errno::AGAIN));
            }
            self.tell();
            let result = match self.charge(directory, name) {
                Ok(Some(_)) if !descends => Err(SysError::of(Errno::NAMETOOLONG)),
                result => result,
            };
            match result {
                Ok(Some(child)) => return Ok(Some((child, entry.next_entry_cookie()))),
                // It is gone meanwhile.
                Ok(None) | Err(SysError { errno: Errno::NOENT, .. }) => {}
                Err(SysError { errno: Errno::XDEV, .. }) => add(&mut self.found.covered),
                Err(error) => {
                    add(&mut self.found.failed);
                    self.found.first.get_or_insert_with(|| format!("{:?}: {}", name.to_string_lossy(), error.errno));
                }
            }
        }
        Ok(None)
    }

    /// Puts an entry into the project. Returns it if it is a directory.
    fn charge(&mut self, parent: &OwnedFd, name: &CStr) -> Result<Option<OwnedFd>, SysError> {
        match file::status_at(parent, name)?.file_type {
            FileType::Directory => {
                let directory = file::open(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
                self.charge_open(&directory, true)?;
                Ok(Some(directory))
            }
            FileType::RegularFile => {
                // Opening a device may have effects, and it may be in the file's place by now.
                let found = file::open(parent, name, OFlags::PATH)?;
                if file::status(&found)?.file_type != FileType::RegularFile {
                    return Err(SysError::of(Errno::AGAIN));
                }
                let path = format!("/proc/self/fd/{}", found.as_raw_fd());
                self.charge_open(&walk::open_at_start(&path, OFlags::RDONLY | OFlags::NONBLOCK)?, false)?;
                Ok(None)
            }
            _ => self.charge_by_name(parent, name).map(|()| None),
        }
    }

    /// Puts an open file or directory into the project.
    pub fn charge_open(&mut self, open: &OwnedFd, is_directory: bool) -> Result<(), SysError> {
        let found = xflags::attributes(open)?;
        let flags = if is_directory { PROJECT_INHERIT } else { 0 };
        if found.fsx_projid == self.project && found.fsx_xflags & flags == flags {
            return Ok(());
        }
        // With names in two volumes it belongs to the one that has it: it must not go to and fro.
        if !is_directory && (self.is_of_another)(found.fsx_projid) && rustix::fs::fstat(open).by("fstat")?.st_nlink > 1
        {
            add(&mut self.found.shared);
            return Ok(());
        }
        add(&mut self.found.moved);
        if self.writes { xflags::set_project(open, self.project, flags) } else { Ok(()) }
    }

    /// Puts into the project what cannot be opened.
    fn charge_by_name(&mut self, parent: &OwnedFd, name: &CStr) -> Result<(), SysError> {
        let mut raw = file_attr { fa_xflags: 0, fa_extsize: 0, fa_nextents: 0, fa_projid: 0, fa_cowextsize: 0 };
        let mut charge = || {
            xflags::attributes_at(parent, name, FILE_GETATTR, &mut raw)?;
            let is_shared = (self.is_of_another)(raw.fa_projid);
            let moves = raw.fa_projid != self.project && !is_shared;
            if moves && self.writes {
                raw.fa_projid = self.project;
                xflags::attributes_at(parent, name, FILE_SETATTR, &mut raw)?;
            }
            Ok((moves, is_shared))
        };
        match charge() {
            Ok((true, _)) => add(&mut self.found.moved),
            Ok((_, true)) => add(&mut self.found.shared),
            Ok(_) => {}
            Err(SysError { errno: Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOTTY, .. }) => {
                add(&mut self.found.uncharged)
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn tell(&mut self) {
        if self.told.elapsed() >= NEWS {
            self.told = Instant::now();
            eprintln!("{}: {} entries so far", self.title, self.found.entries);
        }
    }
}

fn add(number: &mut u64) {
    *number = number.saturating_add(1);
}
