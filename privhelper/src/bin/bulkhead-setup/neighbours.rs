//! The other pools on a pool's filesystem: project ids belong to that, and theirs are taken.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bulkhead_privhelper::layout::{self, Entry, MARKER};
use bulkhead_privhelper::log::shown;
use bulkhead_privhelper::{SysError, file, walk};
use rustix::io::Errno;

use crate::open_to_write;

/// The projects of the volumes in other pools on the filesystem: in those that are `named`, and in those beside the pool.
///
/// # Errors
/// A sentence when one cannot be looked at, or one that is named is none.
pub fn projects(pool: &Path, directory: &OwnedFd, named: &[PathBuf]) -> Result<BTreeSet<u32>, String> {
    let own = file::status(directory).map_err(|error| format!("cannot inspect {}: {error}", shown(pool)))?.id;
    let mut taken = BTreeSet::new();
    let beside =
        beside(pool).map_err(|error| format!("cannot look for other pools beside {}: {error}", shown(pool)))?;
    for other in named.iter().cloned().chain(beside) {
        let is_named = named.contains(&other);
        let cannot = |error: SysError| format!("cannot look at the other pool {}: {error}", shown(&other));
        let opened = match open_to_write(&other) {
            // It is no directory, is gone by now, or is a mount of a filesystem elsewhere, which has no projects.
            Err(SysError {
                errno: Errno::NOTDIR | Errno::LOOP | Errno::NOENT | Errno::STALE | Errno::NOTCONN, ..
            }) if !is_named => continue,
            opened => opened.map_err(cannot)?,
        };
        let id = file::status(&opened).map_err(cannot)?.id;
        let is_pool = file::status_at(&opened, MARKER).is_ok() && id.device == own.device && id != own;
        if is_pool {
            add(&opened, &mut taken).map_err(cannot)?;
        } else if is_named {
            return Err(format!(
                "{} is no other pool on the filesystem of {}; leave it out",
                shown(&other),
                shown(pool)
            ));
        }
    }
    Ok(taken)
}

/// Returns what is in the directory that the pool is in.
fn beside(pool: &Path) -> Result<Vec<PathBuf>, SysError> {
    let Some(parent) = pool.parent() else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    walk::each_entry(&open_to_write(parent)?, |name| {
        found.push(parent.join(OsStr::from_bytes(name.to_bytes())));
        Ok(())
    })?;
    Ok(found)
}

fn add(pool: &OwnedFd, taken: &mut BTreeSet<u32>) -> Result<(), SysError> {
    walk::each_entry(pool, |name| {
        let Entry::Volume(id) = Entry::of(&name.to_string_lossy()) else { return Ok(()) };
        match layout::open_volume(pool, id.as_str()) {
            Err(SysError { errno: Errno::NOTDIR | Errno::LOOP | Errno::NOENT, .. }) => Ok(()),
            opened => {
                taken.extend(layout::project_of(opened?)?.map(|project| project.0));
                Ok(())
            }
        }
    })
}
