//! Making a pool: each step can be the last before the power fails, and is found and continued by the next run.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use bulkhead_privhelper::log::shown;
use bulkhead_privhelper::quotastate::{self, Enforcement};
use bulkhead_privhelper::{SysError, file, walk};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::content;
use super::devices::Device;
use super::fstab::{Fstab, Note};
use super::plan::{Pool, SYSFS, Stage, is_absent_or_empty};
use super::programs::run;
use super::usage::Usage;
use super::why::Why;

/// Does what is left to do for a pool.
///
/// # Errors
/// A sentence on why it is not finished.
pub fn pool(pool: &Pool, fstab: &Fstab) -> Result<(), String> {
    let Pool { note, device, stage } = pool;
    match stage {
        Stage::Ready => return Ok(()),
        Stage::Formatted => {}
        Stage::Empty | Stage::HalfFormatted => {
            can_be_mounted(note, &usage()?)?;
            // First of all: what is half-done can then be told from what others have.
            fstab.write(&Note { is_made: false, ..note.clone() })?;
            if let Err(complaint) = format(device, note, *stage == Stage::HalfFormatted) {
                if !bears(device, note) {
                    fstab.forget(&note.name)?;
                }
                return Err(complaint);
            }
        }
    }
    if !note.is_made {
        fstab.write(&Note { is_made: true, ..note.clone() })?;
    }
    mount(device, note)?;
    mark(device, note)
}

/// Makes the filesystem on an empty disk, or on one on which this program has begun to.
fn format(device: &Device, note: &Note, is_half: bool) -> Result<(), String> {
    let path = device.path();
    let told = |why: Why| format!("{} is left alone: it {why}", shown(&path));
    let cannot = |error: SysError| format!("cannot access {}: {error}", shown(&path));
    // As long as this is open, no other disk gets the name; udev, and what keeps to its rule, leaves alone what is locked.
    let held = walk::open_at_start(&path, OFlags::RDWR).map_err(cannot)?;
    walk::lock(&held).map_err(|_| told(Why::Busy))?;
    if is_half {
        let alone = content::open_alone(&path, OFlags::RDWR).map_err(told)?;
        is_same(device, &alone).map_err(told)?;
        if !is_unfinished(&alone, note) {
            return Err(told(Why::Changed));
        }
        content::clear_ends(&alone).map_err(cannot)?;
    }
    let alone = content::open_alone(&path, OFlags::RDONLY).map_err(told)?;
    is_same(device, &alone).map_err(told)?;
    content::is_empty(&path, &alone).map_err(told)?;
    // mkfs.xfs opens it alone in turn, and refuses what has got a signature meanwhile.
    drop(alone);
    // -K: what is beyond the filesystem's own blocks stays as it is.
    run("mkfs.xfs", &["-q", "-K", "-m", &format!("uuid={}", note.uuid)], &[&path])?;
    file::sync(&held).map_err(cannot)?;
    match content::filesystem(&held).map_err(cannot)? {
        Some(found) if found.uuid == note.uuid && !found.unfinished => Ok(()),
        _ => Err(format!("mkfs.xfs has left no filesystem on {}", shown(&path))),
    }
}

/// Whether a device is the one that was looked at.
fn is_same(device: &Device, opened: &OwnedFd) -> Result<(), Why> {
    let failed = |error: SysError| Why::Failed(error.to_string());
    let now = Device::read(Path::new(SYSFS), &device.name);
    let number = file::status(opened).map_err(failed)?.device;
    let size = content::size(opened).map_err(failed)?;
    let is_same = now.is_some_and(|now| now.is(device)) && number == device.number && size == device.size;
    if is_same { Ok(()) } else { Err(Why::Changed) }
}

fn is_unfinished(device: &OwnedFd, note: &Note) -> bool {
    matches!(content::filesystem(device), Ok(Some(found)) if found.uuid == note.uuid && found.unfinished)
}

/// Whether something on a device is this program's, or may be because it cannot be told.
fn bears(device: &Device, note: &Note) -> bool {
    let opened = walk::open_at_start(&device.path(), OFlags::RDONLY);
    match opened.and_then(content::filesystem) {
        Ok(found) => found.is_some_and(|found| found.uuid == note.uuid),
        Err(_) => true,
    }
}

/// Checks that nothing would be hidden by a mount.
fn can_be_mounted(note: &Note, usage: &Usage) -> Result<(), String> {
    let path = shown(&note.directory).to_string();
    if usage.points.contains(&note.directory) {
        return Err(format!("something else is mounted on {path}"));
    }
    match is_absent_or_empty(&note.directory) {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("{path} is not empty: a mount there would hide what is in it")),
        Err(error) => Err(format!("cannot list {path}: {error}")),
    }
}

fn mount(device: &Device, note: &Note) -> Result<(), String> {
    let path = shown(&note.directory).to_string();
    let usage = usage()?;
    if is_mounted(&usage, device, note) {
        return Ok(());
    }
    can_be_mounted(note, &usage)?;
    let made = walk::open_at_start("/", OFlags::PATH | OFlags::DIRECTORY).and_then(|root| {
        let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH;
        walk::make_directories(root.as_fd(), &note.directory.to_string_lossy(), mode)
    });
    made.map_err(|error| format!("cannot make {path}: {error}"))?;
    tell_systemd();
    match run("mount", &["-t", "xfs", "-o", "prjquota"], &[&device.path(), &note.directory]) {
        // At boot, systemd may have been faster.
        Err(complaint) if !is_mounted(&self::usage()?, device, note) => Err(complaint),
        _ => Ok(()),
    }
}

fn usage() -> Result<Usage, String> {
    Usage::now().map_err(|error| format!("cannot look at what is mounted: {error}"))
}

fn is_mounted(usage: &Usage, device: &Device, note: &Note) -> bool {
    usage.points_of(device.number).any(|point| *point == note.directory)
}

/// Has systemd read fstab. By a unit of a disk that is gone, it would unmount what is mounted in its place.
fn tell_systemd() {
    if is_run_by_systemd()
        && let Err(complaint) = run("systemctl", &["daemon-reload"], &[])
    {
        eprintln!("bulkhead-setup: {complaint}");
    }
}

/// As sd_booted(3) tells it.
#[expect(clippy::disallowed_methods, reason = "only asked whether it is there")]
fn is_run_by_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Marks what is mounted as the pool, if it is the right filesystem with quotas, and nothing else is in it.
fn mark(device: &Device, note: &Note) -> Result<(), String> {
    let path = shown(&note.directory).to_string();
    let cannot = |error: SysError| format!("cannot look at {path}: {error}");
    let directory = crate::open_to_write(&note.directory).map_err(cannot)?;
    if file::status(&directory).map_err(cannot)?.id.device != device.number {
        return Err(format!("something else is mounted on {path}"));
    }
    if quotastate::state(&directory).map_err(cannot)?.0 != Enforcement::Enforced {
        return Err(format!(
            "{path} is mounted without prjquota: unmount it, correct the options in fstab, and run this again"
        ));
    }
    let has_marker = match file::status_at(&directory, bulkhead_privhelper::layout::MARKER) {
        Ok(_) => true,
        Err(error) if error.errno == Errno::NOENT => false,
        Err(error) => return Err(cannot(error)),
    };
    if !has_marker && !walk::is_empty(&directory, c".bulkhead.new").map_err(cannot)? {
        return Err(format!(
            "{path} is not marked as a pool and is not empty; if it is right, run bulkhead-setup init-pool {}={path}",
            note.name
        ));
    }
    crate::mark(&directory, &note.directory, Some(&note.name)).map(drop)
}
