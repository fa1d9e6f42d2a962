//! What the marker of a pool says.

use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::bookkeeping::Overhead;
use crate::log::shown;
use crate::place::attributes::MARKER;
use crate::start::marker::{HEADER, Marker};
use crate::start::refusal::{Refusal, Why};
use crate::state::PoolConfig;
use crate::sys::walk::is_empty;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file};

/// No marker is longer than this.
const MAX_LENGTH: usize = 4096;

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
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
    rustix::fs::futimens(file::open(directory, MARKER, OFlags::RDONLY)?, &times).by("utimensat")
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use bulkhead_protocol::{PoolName, QuotaMode};
    use rustix::fs::Mode;

    use super::*;
    use crate::bookkeeping::Reserve;
    use crate::start::marker::{make, text};
    use crate::sys::walk;

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
