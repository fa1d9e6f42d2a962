//! Step 4 of the helper's life: the proof that what is mounted in the jail is mounted on the host.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::host::Host;
use super::jail::Jail;
use super::refusal::{Refusal, Why};
use crate::log::shown;
use crate::place::TRIAL;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file, mount, walk, with_patience, xfs};

/// The type of a tmpfs (`TMPFS_MAGIC`, statfs(2)).
const TMPFS: rustix::fs::FsWord = 0x0102_1994;

/// Proves for each publish directory that a mount made in the jail appears on the host, and that it disappears when it
/// is unmounted.
///
/// # Errors
/// A sentence that names the directory.
pub fn prove(host: &Host, jail: &Jail) -> Result<(), Refusal> {
    for (outside, inside) in host.publish.iter().zip(&jail.publish) {
        let shown = shown(&outside.path).to_string();
        let (appeared, went) =
            try_mount(&outside.descriptor, inside, &jail.nodes.0).map_err(|error| match error.errno {
                Errno::BUSY => Why::TrialMount.because(format!(
                    "the trial mount {shown}/{TRIAL} is in use; find out by what: fuser -vm {shown}/{TRIAL}"
                )),
                Errno::EXIST => Why::TrialMount.because(format!(
                    "something other than a trial mount is at {shown}/{TRIAL}; unmount it and remove it"
                )),
                _ => format!("cannot perform a trial mount in {shown}: {error}").into(),
            })?;
        if !appeared || !went {
            let what = if appeared { "unmounting" } else { "a mount" };
            return Err(Why::NotPropagated.because(format!(
                "{what} in {shown} has no effect on the host; run the helper in the host's mount namespace"
            )));
        }
    }
    Ok(())
}

/// Mounts `source` in the jail and unmounts it; returns whether it appeared outside, and whether it disappeared.
fn try_mount(outside: &OwnedFd, inside: &OwnedFd, source: &OwnedFd) -> SysResult<(bool, bool)> {
    match file::make_directory(inside, TRIAL, Mode::RWXU) {
        // A helper that was killed here has left its trial behind.
        Err(SysError { errno: Errno::EXIST, .. }) => take_away(inside)?,
        made => made?,
    }
    let seen = || -> SysResult<bool> {
        let status = file::status_at(outside, TRIAL)?;
        Ok(status.mount_root && status.id == file::status(source)?.id)
    };
    mount::attach(&mount::clone_of(source, xfs::FLAGS)?, file::open_entry(inside, TRIAL)?)?;
    let appeared = seen();
    unmount(inside)?;
    let gone = seen().map(|seen| !seen);
    file::remove_directory(inside, TRIAL)?;
    Ok((appeared?, gone?))
}

/// Unmounts what earlier trials have left, and nothing else.
///
/// # Errors
/// `EXIST` if it is something else: each trial shows an empty tmpfs that belongs to root.
fn take_away(inside: &OwnedFd) -> SysResult<()> {
    loop {
        let entry = file::open_entry(inside, TRIAL)?;
        let status = file::status(&entry)?;
        if !status.mount_root {
            return Ok(());
        }
        let is_tmpfs = rustix::fs::fstatfs(&entry).by("fstatfs")?.f_type == TMPFS;
        let is_trial = is_tmpfs && status.uid == 0 && status.mode & 0o7777 == 0o700;
        if !is_trial || !walk::is_empty(&file::open(&entry, ".", OFlags::RDONLY | OFlags::DIRECTORY)?, c"")? {
            return Err(SysError::of(Errno::EXIST));
        }
        drop(entry);
        unmount(inside)?;
    }
}

/// Unmounts a trial. A program that looks at every new mount may have it open for a moment.
fn unmount(inside: &OwnedFd) -> SysResult<()> {
    with_patience(Errno::BUSY, || mount::unmount_entry(inside.as_fd(), TRIAL))
}
