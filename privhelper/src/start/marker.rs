//! The marker file of a pool: without it a directory is no pool, so a disk that failed to mount never becomes one on `/`.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bulkhead_protocol::PoolName;
use rustix::fs::{Mode, OFlags};

use crate::state::PoolConfig;
use crate::state::layout::MARKER;
use crate::sys::file::{self, Status};
use crate::sys::{Errno, Result as SysResult};

const MAX_LENGTH: usize = 4096;
/// First line of a marker; the number is the layout of what lies in the pool.
const HEADER: &str = "bulkhead-pool 1";

/// Refuses a directory that has no marker and is not the root of a mount: most likely its disk is not mounted, and then
/// it does not matter what else is wrong with the filesystem that shows instead.
///
/// # Errors
/// One sentence that says so.
pub fn refuse_unmounted(directory: &OwnedFd, pool: &PoolConfig, status: &Status) -> Result<(), String> {
    let shown = pool.directory.display();
    match file::open(directory, MARKER, OFlags::RDONLY) {
        Err(Errno::NOENT) if !status.mount_root => Err(format!(
            "{shown} has no marker and is not the root of a mount: is its disk mounted? If it is to be a pool, run bulkhead-privhelper --init-pool {shown}"
        )),
        _ => Ok(()),
    }
}

/// Locks a pool's marker, once it is there and right. With `changes`, an empty directory gets one; call
/// [`refuse_unmounted`] before.
///
/// # Errors
/// One sentence on why the directory is not to be served.
pub fn lock(directory: &OwnedFd, pool: &PoolConfig, changes: bool) -> Result<OwnedFd, String> {
    let shown = pool.directory.display();
    let fail = |what: &str, errno: Errno| format!("cannot {what} {shown}/{MARKER}: {errno}");
    let marker = match file::open(directory, MARKER, OFlags::RDONLY) {
        Err(Errno::NOENT) => {
            if !is_empty(directory).map_err(|errno| fail("list the directory of", errno))? {
                return Err(format!(
                    "{shown} has no marker and is not empty; if it is to be a pool, run bulkhead-privhelper --init-pool {shown}"
                ));
            }
            if !changes {
                // The helper will make it.
                return rustix::io::fcntl_dupfd_cloexec(directory, 0).map_err(|errno| fail("look for", errno));
            }
            write(directory, Some(&pool.name)).map_err(|errno| fail("write", errno))?;
            file::open(directory, MARKER, OFlags::RDONLY)
        }
        result => result,
    };
    let marker = marker.map_err(|errno| fail("open", errno))?;
    let content = file::read_up_to(&marker, MAX_LENGTH).map_err(|errno| fail("read", errno))?;
    check(&String::from_utf8_lossy(&content), pool)?;
    match file::lock(&marker) {
        Ok(()) => Ok(marker),
        // A check disturbs nobody, and a helper that serves is a good sign.
        Err(Errno::AGAIN) if !changes => Ok(marker),
        Err(Errno::AGAIN) => Err(format!("{shown} is served by another helper; stop it first")),
        Err(errno) => Err(fail("lock", errno)),
    }
}

/// Marks directories as pools.
pub fn init(pools: &[(Option<PoolName>, PathBuf)]) -> Result<(), String> {
    for (name, path) in pools {
        init_one(name.as_ref(), path)?;
        eprintln!("{} is a pool now", path.display());
    }
    Ok(())
}

fn init_one(name: Option<&PoolName>, path: &Path) -> Result<(), String> {
    let fail = |errno: Errno| format!("cannot mark {} as a pool: {errno}", path.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory = file::open_at_start(path, flags).map_err(fail)?;
    match write(&directory, name) {
        Err(Errno::EXIST) => Err(format!("{} is marked as a pool already", path.display())),
        result => result.map_err(fail),
    }
}

fn write(directory: &OwnedFd, name: Option<&PoolName>) -> SysResult<()> {
    let uuid = file::read_up_to(file::open_at_start("/proc/sys/kernel/random/uuid", OFlags::RDONLY)?, 64)?;
    let uuid = String::from_utf8_lossy(&uuid);
    let mut text = format!("{HEADER}\nuuid {}\n", uuid.trim());
    if let Some(name) = name {
        text.push_str(&format!("name {name}\n"));
    }
    let making = format!("{MARKER}.new");
    match file::remove(directory, &*making) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    let marker = file::create(directory, &making, Mode::RUSR | Mode::WUSR)?;
    rustix::io::write(&marker, text.as_bytes())?;
    file::sync(&marker)?;
    let renamed = file::rename_new(directory, &making, directory, MARKER);
    if renamed.is_err() {
        let _ = file::remove(directory, &*making);
    }
    renamed?;
    file::sync(directory)
}

fn check(text: &str, pool: &PoolConfig) -> Result<(), String> {
    let shown = pool.directory.display();
    let mut lines = text.lines();
    match lines.next() {
        Some(HEADER) => {}
        Some(other) if other.starts_with("bulkhead-pool ") => {
            return Err(format!("{shown} has the layout of another release ({other}); use that release's helper"));
        }
        _ => return Err(format!("{shown}/{MARKER} is no marker of a pool")),
    }
    match lines.find_map(|line| line.strip_prefix("name ")) {
        Some(name) if name != pool.name.as_str() => {
            Err(format!("{shown} calls itself pool {name}, not {}; is the right disk mounted there?", pool.name))
        }
        _ => Ok(()),
    }
}

/// Whether there is nothing in a directory but what mkfs.ext4 puts there.
fn is_empty(directory: &OwnedFd) -> SysResult<bool> {
    let mut empty = true;
    file::each_entry(directory, |name| {
        empty &= name == c"lost+found";
        Ok(())
    })?;
    Ok(empty)
}
