//! The marker file of a pool: a directory without one is not a pool, so a disk that failed to mount never leads to a
//! pool on `/`.

use std::os::fd::OwnedFd;

use bulkhead_protocol::PoolName;
use linux_raw_sys::general::XFS_SUPER_MAGIC;
use rustix::fs::{Mode, OFlags};

use super::refusal::{Refusal, Why};
use crate::bookkeeping::Overhead;
use crate::log::shown;
use crate::place::attributes::MARKER;
use crate::state::PoolConfig;
use crate::sys::quota::{self, Look, ProjectId};
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file, quotastate, unless, walk};

/// The first line of a marker; the number is the layout of what is in the pool.
pub const HEADER: &str = "bulkhead-pool 1";

/// What the marker of a pool says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marker {
    /// The pool's uuid: its identity. Two directories with one are copies.
    pub uuid: String,
    /// What the filesystem had in use when the pool was made and empty, if that was measured.
    pub overhead: Option<Overhead>,
}

/// What an inode takes on XFS, unless mkfs was told otherwise.
const XFS_INODE: u64 = 512;

/// Measures what a filesystem has in use that can never be given to volumes. What is charged to its own project is not
/// part of that: it can go.
fn overhead(directory: &OwnedFd) -> SysResult<Overhead> {
    let found = rustix::fs::fstatvfs(directory).by("fstatfs")?;
    let is_xfs = rustix::fs::fstatfs(directory).by("fstatfs")?.f_type == XFS_SUPER_MAGIC.into();
    let (block, inode) = if is_xfs { (found.f_frsize, XFS_INODE) } else { (512, 0) };
    let used = found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(found.f_frsize);
    let inodes = found.f_files.saturating_sub(found.f_ffree).saturating_mul(inode);
    let quotas = quotastate::state(directory).map_or(0, |(_, blocks)| blocks.saturating_mul(block));
    let system = quota::get(directory, Look::AtOnce, ProjectId(0)).map_or(0, |quota| quota.used_bytes);
    let bytes = [inodes, quotas, system].iter().fold(used, |left, part| left.saturating_sub(*part));
    Ok(Overhead { bytes, of: Some(found.f_blocks.saturating_mul(found.f_frsize)) })
}

/// Locks the marker of a pool in the jail for this helper, for as long as the descriptor is open. A descriptor from
/// outside the jail would keep the host from unmounting the pool.
///
/// # Errors
/// One sentence on why the pool is not to be served.
pub fn claim(directory: &OwnedFd, pool: &PoolConfig) -> Result<OwnedFd, Refusal> {
    let path = shown(&pool.directory);
    let marker = file::open(directory, MARKER, OFlags::RDONLY);
    match marker.and_then(|marker| walk::lock(&marker).map(|()| marker)) {
        Err(SysError { errno: Errno::AGAIN, .. }) => Err(Why::InUse.because(format!(
            "{path} is served by another helper; stop that one, its socket first, and this one takes over within seconds"
        ))),
        marker => marker.map_err(|error| format!("cannot lock {path}/{MARKER}: {error}").into()),
    }
}

/// Makes a directory a pool, and returns its marker.
///
/// # Errors
/// `EXIST` if it already is one.
pub fn make(directory: &OwnedFd, name: Option<&PoolName>) -> SysResult<Marker> {
    let uuid = file::read_up_to(walk::open_at_start("/proc/sys/kernel/random/uuid", OFlags::RDONLY)?, 64)?;
    let uuid = String::from_utf8_lossy(&uuid).trim().to_owned();
    let made = Marker { uuid, overhead: Some(overhead(directory)?) };
    let unfinished = format!("{MARKER}.new");
    unless(Errno::NOENT, file::remove(directory, &*unfinished))?;
    let marker = file::create(directory, &unfinished, Mode::RUSR | Mode::WUSR)?;
    rustix::io::write(&marker, text(&made, name).as_bytes()).by("write")?;
    file::sync(&marker)?;
    let renamed = walk::rename_new(directory, &unfinished, directory, MARKER);
    if renamed.is_err() {
        let _ = file::remove(directory, &*unfinished);
    }
    renamed?;
    file::sync(directory)?;
    Ok(made)
}

/// Returns the text of a marker.
pub fn text(marker: &Marker, name: Option<&PoolName>) -> String {
    let name = name.map_or_else(String::new, |name| format!("name {name}\n"));
    let line = |key: &str, bytes: Option<u64>| bytes.map_or_else(String::new, |bytes| format!("{key} {bytes}\n"));
    let overhead = line("overhead", marker.overhead.map(|overhead| overhead.bytes));
    let size = line("size", marker.overhead.and_then(|overhead| overhead.of));
    format!("{HEADER}\nuuid {}\n{name}{overhead}{size}", marker.uuid)
}
