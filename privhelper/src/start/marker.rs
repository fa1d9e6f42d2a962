//! The marker file of a pool: a directory without one is not a pool, so a disk that failed to mount never leads to a
//! pool on `/`.

use std::os::fd::OwnedFd;

use bulkhead_protocol::PoolName;
use rustix::fs::{Mode, OFlags};

use crate::state::PoolConfig;
use crate::state::layout::MARKER;
use crate::sys::{Errno, Result as SysResult, file};

/// No marker is longer than this.
const MAX_LENGTH: usize = 4096;
/// The first line of a marker; the number is the layout of what is in the pool.
const HEADER: &str = "bulkhead-pool 1";

/// Checks the marker of a pool. `false` if there is none but the pool is to get one at its first start, because its
/// directory is empty and the root of a mount.
///
/// # Errors
/// One sentence on why the directory is not to be served.
pub fn find(directory: &OwnedFd, is_mount_root: bool, pool: &PoolConfig) -> Result<bool, String> {
    let shown = pool.directory.display();
    let fail = |what: &str, errno: Errno| format!("cannot {what} {shown}/{MARKER}: {errno}");
    match file::open(directory, MARKER, OFlags::RDONLY) {
        Ok(marker) => {
            let content = file::read_up_to(&marker, MAX_LENGTH).map_err(|errno| fail("read", errno))?;
            check(&String::from_utf8_lossy(&content), pool)?;
            Ok(true)
        }
        Err(Errno::NOENT) if !is_mount_root => Err(format!(
            "{shown} has no marker and is not the root of a mount: is its disk mounted? If it is to be a pool, run bulkhead-setup init-pool {shown}"
        )),
        Err(Errno::NOENT) if !is_empty(directory).map_err(|errno| fail("look for", errno))? => Err(format!(
            "{shown} has no marker and is not empty; if it is to be a pool, run bulkhead-setup init-pool {shown}"
        )),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(fail("open", errno)),
    }
}

/// Locks the marker of a pool in the jail for this helper, for as long as the descriptor is open. A descriptor from
/// outside the jail would keep the host from unmounting the pool.
///
/// # Errors
/// One sentence on why the pool is not to be served.
pub fn claim(directory: &OwnedFd, pool: &PoolConfig) -> Result<OwnedFd, String> {
    let shown = pool.directory.display();
    let marker = file::open(directory, MARKER, OFlags::RDONLY);
    match marker.and_then(|marker| file::lock(&marker).map(|()| marker)) {
        Err(Errno::AGAIN) => Err(format!("{shown} is served by another helper; stop it first")),
        marker => marker.map_err(|errno| format!("cannot lock {shown}/{MARKER}: {errno}")),
    }
}

/// Makes a directory a pool.
///
/// # Errors
/// `EXIST` if it already is one.
pub fn make(directory: &OwnedFd, name: Option<&PoolName>) -> SysResult<()> {
    let uuid = file::read_up_to(file::open_at_start("/proc/sys/kernel/random/uuid", OFlags::RDONLY)?, 64)?;
    let unfinished = format!("{MARKER}.new");
    match file::remove(directory, &*unfinished) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let marker = file::create(directory, &unfinished, Mode::RUSR | Mode::WUSR)?;
    rustix::io::write(&marker, text(&String::from_utf8_lossy(&uuid), name).as_bytes())?;
    file::sync(&marker)?;
    let renamed = file::rename_new(directory, &unfinished, directory, MARKER);
    if renamed.is_err() {
        let _ = file::remove(directory, &*unfinished);
    }
    renamed?;
    file::sync(directory)
}

fn text(uuid: &str, name: Option<&PoolName>) -> String {
    let name = name.map_or_else(String::new, |name| format!("name {name}\n"));
    format!("{HEADER}\nuuid {}\n{name}", uuid.trim())
}

fn check(text: &str, pool: &PoolConfig) -> Result<(), String> {
    let shown = pool.directory.display();
    let mut lines = text.lines();
    match lines.next() {
        Some(HEADER) => {}
        Some(other) if other.starts_with("bulkhead-pool ") => {
            return Err(format!("{shown} has the layout of another release ({other}); use that release's helper"));
        }
        _ => return Err(format!("{shown}/{MARKER} is not the marker of a pool")),
    }
    match lines.find_map(|line| line.strip_prefix("name ")) {
        Some(name) if name != pool.name.as_str() => {
            Err(format!("{shown} is marked as pool {name}, not {}; is the right disk mounted there?", pool.name))
        }
        _ => Ok(()),
    }
}

/// Whether a directory contains nothing but what mkfs.ext4 puts there.
fn is_empty(directory: &OwnedFd) -> SysResult<bool> {
    let mut empty = true;
    file::each_entry(directory, |name| {
        empty &= name == c"lost+found";
        Ok(())
    })?;
    Ok(empty)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use bulkhead_protocol::QuotaMode;

    use super::*;

    fn config() -> PoolConfig {
        let name = "fast".parse().expect("a name");
        let directory = "/pool".into();
        PoolConfig { name, directory, quota: QuotaMode::None, overcommit_permille: 1000, reserve: 0 }
    }

    fn complaint(text: &str) -> Option<String> {
        check(text, &config()).err()
    }

    /// An empty directory, which is removed at the end with the entries named here.
    fn in_directory(test: impl FnOnce(&OwnedFd)) {
        let path = std::env::temp_dir().join(format!("bulkhead-marker-{:?}", std::thread::current().id()));
        let top = file::open_at_start("/", OFlags::PATH).expect("the root directory");
        let below = path.to_str().expect("a plain path").trim_start_matches('/');
        let opened = file::make_directories(top.as_fd(), below, Mode::RWXU);
        opened.expect("a directory");
        let directory = file::open_at_start(&path, OFlags::RDONLY | OFlags::DIRECTORY).expect("the directory");
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
            assert_eq!(found(true), Ok(false));
            assert!(found(false).is_err_and(|error| error.contains("is not the root of a mount")));
            file::make_directory(directory, "lost+found", Mode::RWXU).expect("a directory");
            assert_eq!(found(true), Ok(false), "mkfs.ext4 makes that");
            file::create(directory, "other", Mode::RUSR).expect("a file");
            assert!(found(true).is_err_and(|error| error.contains("is not empty")));
        });
    }

    #[test]
    fn a_marker_is_made_once_and_belongs_to_its_owner_alone() {
        in_directory(|directory| {
            make(directory, Some(&config().name)).expect("a marker");
            assert_eq!(make(directory, None).expect_err("there is one"), Errno::EXIST);
            let mode = file::status_at(directory, MARKER).expect("the marker").mode;
            assert_eq!(mode & 0o7777, 0o600);
            assert_eq!(find(directory, false, &config()), Ok(true));
            let other = PoolConfig { name: "slow".parse().expect("a name"), ..config() };
            assert!(find(directory, false, &other).is_err_and(|error| error.contains("is marked as pool fast")));
        });
    }

    #[test]
    fn a_marker_is_accepted_with_the_pools_name_and_without_any() {
        let name: PoolName = "fast".parse().expect("a name");
        let uuid = "0fc63daf-8483-4772-8e79-3d69d8477de4\n";
        assert_eq!(text(uuid, Some(&name)), "bulkhead-pool 1\nuuid 0fc63daf-8483-4772-8e79-3d69d8477de4\nname fast\n");
        assert_eq!(complaint(&text(uuid, Some(&name))), None);
        assert_eq!(complaint(&text(uuid, None)), None);
        assert_eq!(complaint("bulkhead-pool 1"), None);
    }

    #[test]
    fn a_marker_of_another_pool_or_layout_and_any_other_file_are_refused() {
        for (text, part) in [
            ("", "/pool/.bulkhead is not the marker of a pool"),
            ("\nbulkhead-pool 1\n", "is not the marker of a pool"),
            ("bulkhead-pool", "is not the marker of a pool"),
            ("bulkhead-pool 2\nname fast\n", "the layout of another release (bulkhead-pool 2)"),
            ("bulkhead-pool 11\nname fast\n", "the layout of another release (bulkhead-pool 11)"),
            ("bulkhead-pool 1\nuuid x\nname fas\n", "is marked as pool fas, not fast"),
            ("bulkhead-pool 1\nuuid x\nname fast2\n", "is marked as pool fast2, not fast"),
            ("bulkhead-pool 1\nuuid x\nname \n", "is marked as pool , not fast"),
        ] {
            let found = complaint(text);
            assert!(found.as_ref().is_some_and(|found| found.contains(part)), "{text:?}: {found:?}");
        }
    }
}
