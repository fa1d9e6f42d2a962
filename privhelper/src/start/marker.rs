//! The marker file of a pool: a directory without one is not a pool, so a disk that failed to mount never leads to a
//! pool on `/`.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use bulkhead_protocol::PoolName;
use linux_raw_sys::general::XFS_SUPER_MAGIC;
use rustix::fs::{Mode, OFlags};

use super::refusal::{Refusal, Why};
use crate::bookkeeping::Overhead;
use crate::log::shown;
use crate::place::attributes::{self, Attribute, MARKER, Part};
use crate::state::PoolConfig;
use crate::sys::quota::{self, Look, ProjectId};
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file, or_done, quotastate, walk};

/// No marker is longer than this.
const MAX_LENGTH: usize = 4096;
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

/// Reads the marker of a pool. `None` if there is none but the pool is to get one at its first start, because its
/// directory is empty and the root of a mount.
///
/// # Errors
/// One sentence on why the directory is not to be served.
pub fn find(directory: &OwnedFd, is_mount_root: bool, pool: &PoolConfig) -> Result<Option<Marker>, Refusal> {
    let path = shown(&pool.directory).to_string();
    let cannot = |error: SysError| format!("cannot read {path}/{MARKER}: {error}");
    match read(directory) {
        Err(SysError { errno: Errno::NOENT, .. }) if !is_mount_root => Err(Why::NotMounted.because(format!(
            "{path} has no marker and is not the root of a mount: is its disk mounted? If it is to be a pool, run bulkhead-setup init-pool {path}"
        ))),
        // mkfs.ext4 makes that directory.
        Err(SysError { errno: Errno::NOENT, .. }) => match is_empty(directory, c"lost+found").map_err(cannot)? {
            true => Ok(None),
            false => Err(Why::NotEmpty.because(format!(
                "{path} has no marker and is not empty; if it is to be a pool, run bulkhead-setup init-pool {path}"
            ))),
        },
        content => check(&String::from_utf8_lossy(&content.map_err(cannot)?), pool).map(Some),
    }
}

/// Reads the marker's text.
///
/// # Errors
/// The kernel's error.
pub fn read(directory: &OwnedFd) -> SysResult<Vec<u8>> {
    file::read_up_to(file::open(directory, MARKER, OFlags::RDONLY)?, MAX_LENGTH)
}

/// The uuid in a marker's text.
pub fn uuid(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("uuid "))
}

/// Changes something about the marker, as far as that is possible.
///
/// # Errors
/// The kernel's error.
pub fn touch(directory: &OwnedFd) -> SysResult<()> {
    attributes::set(Part::Marker.open(directory)?, Attribute::Journal, &[0; 8])
}

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
    or_done(file::remove(directory, &*unfinished), Errno::NOENT)?;
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

/// Checks the text of a marker, and reads it.
///
/// # Errors
/// Why the directory is not to be served.
pub fn check(text: &str, pool: &PoolConfig) -> Result<Marker, Refusal> {
    let path = shown(&pool.directory);
    let mut lines = text.lines();
    match lines.next() {
        Some(HEADER) => {}
        Some(other) if other.starts_with("bulkhead-pool ") => {
            return Err(Why::OtherLayout
                .because(format!("{path} has the layout of another release ({other:?}); use that release's helper")));
        }
        _ => return Err(Why::Damaged.because(format!("{path}/{MARKER} is not the marker of a pool"))),
    }
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    if let Some(name) = value("name ").filter(|name| *name != pool.name.as_str()) {
        return Err(Why::OtherName.because(format!(
            "{path} is marked as pool {name:?}, not {}; is the right disk mounted there?",
            pool.name
        )));
    }
    let uuid = uuid(text).ok_or_else(|| Why::Damaged.because(format!("{path}/{MARKER} has no uuid")))?.to_owned();
    let number = |key: &str| value(key).and_then(|bytes| bytes.parse().ok());
    let overhead = number("overhead ").map(|bytes| Overhead { bytes, of: number("size ") });
    Ok(Marker { uuid, overhead })
}

/// Returns whether a directory contains nothing, or only an entry of that name.
///
/// # Errors
/// The kernel's error.
pub fn is_empty(directory: &OwnedFd, but: &CStr) -> SysResult<bool> {
    let mut empty = true;
    walk::each_entry(directory, |name| {
        empty &= name == but;
        Ok(())
    })?;
    Ok(empty)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use bulkhead_protocol::QuotaMode;

    use crate::bookkeeping::Reserve;

    use super::*;

    fn config() -> PoolConfig {
        let name = "fast".parse().expect("a name");
        let directory = "/pool".into();
        PoolConfig {
            name,
            directory,
            quota: QuotaMode::None,
            overcommit_permille: 1000,
            reserve: Reserve::NONE,
            filesystems: 0,
            extents: 0,
        }
    }

    fn complaint(text: &str) -> Option<Refusal> {
        check(text, &config()).err()
    }

    /// An empty directory, which is removed at the end with the entries named here.
    fn in_directory(test: impl FnOnce(&OwnedFd)) {
        // What a failed run has left is in the way of no other.
        let own = format!("bulkhead-marker-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(own);
        let top = walk::open_at_start("/", OFlags::PATH).expect("the root directory");
        let below = path.to_str().expect("a plain path").trim_start_matches('/');
        let opened = walk::make_directories(top.as_fd(), below, Mode::RWXU);
        opened.expect("a directory");
        let directory = walk::open_at_start(&path, OFlags::RDONLY | OFlags::DIRECTORY).expect("the directory");
        test(&directory);
        for name in [MARKER, "other", "lost+found"] {
            let _ = file::remove(&directory, name).or_else(|_| file::remove_directory(&directory, name));
        }
        file::remove_directory(top, below).expect("nothing is left in the directory");
    }

    #[test]
    fn a_directory_without_a_marker_becomes_a_pool_only_if_it_is_an_empty_mount() {
        in_directory(|directory| {
            let found = |is_mount_root| find(directory, is_mount_root, &config());
            assert_eq!(found(true), Ok(None));
            assert!(found(false).is_err_and(|refusal| refusal.why == Why::NotMounted));
            file::make_directory(directory, "lost+found", Mode::RWXU).expect("a directory");
            assert_eq!(found(true), Ok(None), "mkfs.ext4 makes that");
            file::create(directory, "other", Mode::RUSR).expect("a file");
            assert!(found(true).is_err_and(|refusal| refusal.why == Why::NotEmpty));
        });
    }

    #[test]
    fn a_marker_is_made_once_and_belongs_to_its_owner_alone() {
        in_directory(|directory| {
            let made = make(directory, Some(&config().name)).expect("a marker");
            assert_eq!(make(directory, None).expect_err("there is one").errno, Errno::EXIST);
            let mode = file::status_at(directory, MARKER).expect("the marker").mode;
            assert_eq!(mode & 0o7777, 0o600);
            assert_eq!(find(directory, false, &config()), Ok(Some(made)));
            let other = PoolConfig { name: "slow".parse().expect("a name"), ..config() };
            assert!(find(directory, false, &other).is_err_and(|refusal| refusal.why == Why::OtherName));
        });
    }

    #[test]
    fn a_marker_is_accepted_with_the_pools_name_and_without_any() {
        let name: PoolName = "fast".parse().expect("a name");
        let uuid = "0fc63daf-8483-4772-8e79-3d69d8477de4".to_owned();
        let marker = Marker { uuid, overhead: Some(Overhead { bytes: 4096, of: Some(8192) }) };
        let written =
            "bulkhead-pool 1\nuuid 0fc63daf-8483-4772-8e79-3d69d8477de4\nname fast\noverhead 4096\nsize 8192\n";
        assert_eq!(text(&marker, Some(&name)), written);
        let older = Marker { overhead: Some(Overhead { bytes: 4096, of: None }), ..marker.clone() };
        for marker in [marker.clone(), older, Marker { overhead: None, ..marker }] {
            assert_eq!(check(&text(&marker, Some(&name)), &config()), Ok(marker.clone()));
            assert_eq!(check(&text(&marker, None), &config()), Ok(marker));
        }
    }

    #[test]
    fn a_marker_of_another_pool_or_layout_and_any_other_file_are_refused() {
        for (text, why) in [
            ("", Why::Damaged),
            ("\nbulkhead-pool 1\n", Why::Damaged),
            ("bulkhead-pool", Why::Damaged),
            ("bulkhead-pool 1\nname fast\n", Why::Damaged),
            ("bulkhead-pool 2\nname fast\n", Why::OtherLayout),
            ("bulkhead-pool 11\nname fast\n", Why::OtherLayout),
            ("bulkhead-pool 1\nuuid x\nname fas\n", Why::OtherName),
            ("bulkhead-pool 1\nuuid x\nname fast2\n", Why::OtherName),
            ("bulkhead-pool 1\nuuid x\nname \n", Why::OtherName),
        ] {
            assert_eq!(complaint(text).map(|refusal| refusal.why), Some(why), "{text:?}");
        }
        let other = complaint("bulkhead-pool 1\nuuid x\nname fas\n").map(|refusal| refusal.to_string());
        assert_eq!(
            other.as_deref(),
            Some("/pool is marked as pool \"fas\", not fast; is the right disk mounted there?")
        );
    }
}
