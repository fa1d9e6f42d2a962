//! Whether a directory is fit to be a pool, and what kind of one. A child of the start finds that out that has no capability
//! any more: all that may hang if a filesystem does is done there, and what it says is values.

pub mod devices;
pub mod host;
pub mod marker;

use std::os::fd::OwnedFd;

use bulkhead_protocol::{MountFlags, QuotaMode, Text, VolumeId};
use rustix::fs::{OFlags, StatVfsMountFlags};
use serde::{Deserialize, Serialize};

use super::directory::check_owner;
use super::mounts::Mounts;
use super::privileges::Unprivileged;
use super::refusal::{Refusal, Why};
use crate::bookkeeping::Overhead;
use crate::log::shown;
use crate::state::PoolConfig;
use crate::sys::file::FileId;
use crate::sys::mountinfo::Mount;
use crate::sys::quotastate::Enforcement;
use crate::sys::{Error as SysError, extents, file, packet, quotastate, walk, xflags};

/// What is said of a pool.
#[derive(Debug, Serialize, Deserialize)]
pub enum Said {
    /// It is this one, or a copy of it.
    Uuid(Text),
    /// It has a volume with this id.
    Volume(VolumeId),
    /// Whether it can be served.
    Fit(Result<Fit, Refusal>),
    /// Whether what was judged is as it should be.
    Sound(Result<(), Refusal>),
}

/// Says something. Nobody is left to hear it if this fails.
pub fn say(line: &OwnedFd, said: &Said) {
    let _ = bulkhead_protocol::encode(said).map(|packet| packet::send(line, &packet, None));
}

/// What is to be known of a pool that can be served.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Fit {
    /// Its directory.
    pub id: FileId,
    /// Whether it has a marker; otherwise it is about to get one.
    pub is_marked: bool,
    /// What its filesystem had in use when it was made, if its marker says so.
    pub overhead: Option<Overhead>,
    /// The flags that every mount of its volumes has because the pool's own mount has them.
    pub inherited: MountFlags,
    /// Whether it is the whole of its filesystem.
    pub is_whole: bool,
    /// Whether its filesystem is XFS, or else ext4.
    pub is_xfs: bool,
    /// Whether its files can share blocks.
    pub shares_blocks: bool,
}

/// Says what is to be known of the pool in a directory. Its uuid and the ids of the volumes in it are said also of one that is
/// unfit: even if it is not served, neither may be another's. If that is wanted, it writes to the pool as well, should the
/// filesystem not be able to.
pub fn judge(
    _: &Unprivileged,
    directory: &OwnedFd,
    config: &PoolConfig,
    mounts: &Mounts,
    writes: bool,
    line: &OwnedFd,
) {
    let say = |said: Said| say(line, &said);
    let marker = marker::read(directory);
    let uuid = marker.as_ref().ok().and_then(|marker| marker::uuid(&String::from_utf8_lossy(marker)).map(Text::new));
    uuid.map(Said::Uuid).into_iter().for_each(say);
    // What fails here fails again when it matters.
    let _ = walk::each_entry(directory, |name| {
        let id = name.to_str().ok().filter(|_| marker.is_ok()).and_then(|name| name.parse::<VolumeId>().ok());
        id.map(Said::Volume).into_iter().for_each(say);
        Ok(())
    });
    if writes {
        let _ = marker::touch(directory);
        let _ = file::sync(directory);
    }
    say(Said::Fit(inspect(directory, config, mounts)));
}

/// Checks a pool, and changes nothing.
fn inspect(directory: &OwnedFd, config: &PoolConfig, mounts: &Mounts) -> Result<Fit, Refusal> {
    let path = shown(&config.directory).to_string();
    let status = file::status(directory).map_err(|error| format!("cannot inspect {path}: {error}"))?;
    // This comes first: without its disk it does not matter what else is wrong with the filesystem visible in its
    // place.
    let marker = marker::find(directory, status.mount_root, config).or_else(|refusal| match refusal.why {
        // A directory of somebody else's may be closed to root.
        Why::Call => check_owner(&config.directory, directory).and(Err(refusal)),
        _ => Err(refusal),
    })?;
    let gone = || Why::Moved.because(format!("{path} is not on any mount of this namespace"));
    let mount = mounts.get(&status.mount_id).ok_or_else(gone)?;
    let point = shown(&mount.point).to_string();
    if mount.unbindable {
        // KERNEL(6.17): before, the jail cannot have a copy of it.
        return Err(Why::Unbindable.because(format!(
            "{point} is unbindable, so the helper cannot see it; run: mount --make-private {point}"
        )));
    }
    if rustix::fs::fstatvfs(directory).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        return Err(Why::ReadOnly
            .because(format!("{point} is mounted read-only; find out why (dmesg), then mount it read-write")));
    }
    if !matches!(mount.filesystem.as_str(), "xfs" | "ext4") {
        return Err(
            Why::WrongFilesystem.because(format!("{path} is on {}; a pool must be on XFS or ext4", mount.filesystem))
        );
    }
    if !has_journal(mount) {
        return Err(Why::WrongFilesystem.because(format!(
            "{point} is ext4 without a journal, so a power cut could undo what was answered as done; run: tune2fs -O has_journal on the unmounted device"
        )));
    }
    check_quotas(directory, config, mount)?;
    let is_xfs = mount.filesystem == "xfs";
    Ok(Fit {
        id: status.id,
        is_marked: marker.is_some(),
        overhead: marker.and_then(|marker| marker.overhead),
        inherited: mount.flags(),
        is_whole: status.mount_root && mount.root.parent().is_none(),
        is_xfs,
        shares_blocks: is_xfs && extents::shares_blocks(directory).unwrap_or(false),
    })
}

/// XFS always has a journal. ext4 may be made without one; `journal_task` is the number of the thread that writes it.
fn has_journal(mount: &Mount) -> bool {
    let read = |path: &str| {
        let content = walk::open_at_start(path, OFlags::RDONLY).and_then(|open| file::read_up_to(open, 4096));
        String::from_utf8(content.unwrap_or_default()).unwrap_or_default()
    };
    let (major, minor) = mount.device;
    let device = read(&format!("/sys/dev/block/{major}:{minor}/uevent"));
    let name = device.lines().find_map(|line| line.strip_prefix("DEVNAME=")).unwrap_or_default();
    mount.filesystem == "xfs" || read(&format!("/sys/fs/ext4/{name}/journal_task")).trim().parse::<u32>().is_ok()
}

/// Checks the quotas of a pool, if it is to have any.
fn check_quotas(directory: &OwnedFd, config: &PoolConfig, mount: &Mount) -> Result<(), Refusal> {
    let (path, point) = (shown(&config.directory).to_string(), shown(&mount.point).to_string());
    let (enforcement, _) =
        quotastate::state(directory).map_err(|error| format!("cannot query the quotas of {path}: {error}"))?;
    if config.quota == QuotaMode::None {
        return Ok(());
    }
    let remedy = match (mount.filesystem.as_str(), enforcement) {
        ("xfs", _) => "mount it with -o prjquota (a remount is not enough)",
        (_, Enforcement::Accounted) => "run: mount -o remount,prjquota",
        _ => "run tune2fs -O project,quota -Q prjquota on the unmounted device and mount it with -o prjquota",
    };
    match enforcement {
        Enforcement::Enforced => {}
        Enforcement::Accounted => {
            return Err(
                Why::NoQuotas.because(format!("{point} counts project quotas but does not enforce them; {remedy}"))
            );
        }
        Enforcement::Off => {
            return Err(Why::NoQuotas.because(format!(
                "{point} has no project quotas; {remedy}, with a kernel that has CONFIG_XFS_QUOTA, or for ext4 CONFIG_QFMT_V2; or configure quota=none to run without enforced sizes"
            )));
        }
    }
    let attributes = xflags::attributes(directory);
    let attributes = attributes.map_err(|error: SysError| format!("cannot read the project id of {path}: {error}"))?;
    if attributes.fsx_projid != 0 || attributes.fsx_xflags & xflags::PROJECT_INHERIT != 0 {
        return Err(Why::InProject.because(format!(
            "{path} itself is in project {}; remove its project id: xfs_quota -x -c 'project -C', or chattr -P -p 0 {path}",
            attributes.fsx_projid
        )));
    }
    Ok(())
}
