//! A pool on its way through the start, and whether a directory is fit to be one. The latter is checked while the
//! host's own tree is in sight.

use std::os::fd::OwnedFd;

use bulkhead_protocol::{MountFlags, QuotaMode, Text, VolumeId};
use rustix::fs::{OFlags, StatVfsMountFlags};
use serde::{Deserialize, Serialize};

use super::directory::{Directory, Role};
use super::filter::OnViolation;
use super::marker::{self, Marker};
use super::mounts::{Mounts, Position};
use super::patience::{self, Needs};
use super::refusal::{Refusal, Why};
use crate::capabilities::POOL_CHILD;
use crate::log::shown;
use crate::state::PoolConfig;
use crate::sys::mountinfo::Mount;
use crate::sys::quotastate::Enforcement;
use crate::sys::{Error as SysError, file, packet, quotastate, walk, xflags, xfs};

/// A configured pool, and what is known of it so far, or why it is not to be served.
#[derive(Debug)]
pub struct Candidate<T> {
    /// As configured.
    pub config: PoolConfig,
    /// What is known of it.
    pub state: Result<T, Refusal>,
    /// The volumes in a directory that is not to be served, as far as it could be read.
    pub volumes: Vec<VolumeId>,
    /// The uuid in its marker, as far as that could be read.
    pub uuid: Option<String>,
    /// The connection to a process that waits for its filesystem to answer, or for another helper to release it.
    pub waiting: Option<OwnedFd>,
}

/// A directory that is fit to be a pool.
#[derive(Debug)]
pub struct HostPool {
    /// The directory.
    pub directory: Directory,
    /// What its marker says, if it has one already rather than being about to get one.
    pub marker: Option<Marker>,
    /// The flags that every mount of its volumes has because the pool's own mount has them.
    pub inherited: MountFlags,
    /// Whether it is the whole of its filesystem.
    pub is_whole: bool,
    /// Whether its filesystem is XFS, or else ext4.
    pub is_xfs: bool,
    /// Whether its filesystem enforces the limits of projects.
    pub is_enforced: bool,
    /// Whether its files can share blocks.
    pub shares_blocks: bool,
}

impl<T> Candidate<T> {
    /// Takes the next step with it, if it has come this far.
    pub fn then<U>(self, step: impl FnOnce(&PoolConfig, T) -> Result<U, Refusal>) -> Candidate<U> {
        let state = self.state.and_then(|state| step(&self.config, state));
        Candidate { config: self.config, state, volumes: self.volumes, uuid: self.uuid, waiting: self.waiting }
    }
}

impl Candidate<HostPool> {
    /// Looks at a pool of the configuration, and changes nothing.
    pub fn inspect(config: &PoolConfig, mounts: &Mounts, writes: bool, on_violation: OnViolation) -> Self {
        let config = config.clone();
        let needs = Needs { capabilities: POOL_CHILD, directory: None, on_violation };
        let (mut volumes, mut uuid) = (Vec::new(), None);
        let recorded = |packet: &[u8]| match bulkhead_protocol::decode(packet) {
            Ok(Noted::Volume(id)) => volumes.push(id),
            Ok(Noted::Uuid(found)) => uuid = Some(found.as_str().to_owned()),
            Err(_) => {}
        };
        let answers = patience::in_child(patience::LIMIT, needs, |line| touch(&config, writes, line), recorded);
        let (state, waiting) = match answers {
            Ok(Ok(())) => (inspect(&config, mounts), None),
            Ok(Err(waiting)) => (Err(Why::Unanswering.because("its filesystem does not answer; see whether it is frozen (fsfreeze) or its disk hangs (dmesg); it is served as soon as it answers")), Some(waiting)),
            Err(error) => (Err(format!("the process that looks at it fails: {error}").into()), None),
        };
        Self { config, state, volumes, uuid, waiting }
    }
}

/// What is recorded of a pool even if it is not served.
#[derive(Debug, Serialize, Deserialize)]
enum Noted {
    /// It is this one, or a copy of it.
    Uuid(Text),
    /// It has a volume with this id.
    Volume(VolumeId),
}

/// Does everything with a pool that may hang if its filesystem does: reads it, and writes to it if that is allowed and
/// it is a pool already. Sends its uuid and the ids of the volumes in it: even if it is not served, neither may be
/// another's.
fn touch(config: &PoolConfig, writes: bool, line: &OwnedFd) {
    let Ok(directory) = walk::open_at_start(&config.directory, OFlags::RDONLY | OFlags::DIRECTORY) else { return };
    // What fails here fails again when it matters.
    let marker = marker::read(&directory);
    let note = |recorded: Option<Noted>| match recorded.and_then(|recorded| bulkhead_protocol::encode(&recorded).ok()) {
        Some(packet) => packet::send(line, &packet, None),
        None => Ok(()),
    };
    let uuid = marker.as_ref().ok().and_then(|marker| marker::uuid(&String::from_utf8_lossy(marker)).map(Text::new));
    let _ = note(uuid.map(Noted::Uuid));
    let _ = walk::each_entry(&directory, |name| {
        let id = name.to_str().ok().filter(|_| marker.is_ok()).and_then(|name| name.parse::<VolumeId>().ok());
        note(id.map(Noted::Volume))
    });
    if writes {
        let _ = marker::touch(&directory);
        let _ = file::sync(&directory);
    }
}

/// Checks a pool, and changes nothing.
fn inspect(config: &PoolConfig, mounts: &Mounts) -> Result<HostPool, Refusal> {
    let path = shown(&config.directory).to_string();
    let directory = walk::open_at_start(&config.directory, OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(|error| format!("cannot open {path}: {error}"))?;
    let status = file::status(&directory).map_err(|error| format!("cannot inspect {path}: {error}"))?;
    // This comes first: without its disk it does not matter what else is wrong with the filesystem visible in its
    // place.
    let marker = marker::find(&directory, status.mount_root, config)?;
    let gone = || Why::Moved.because(format!("{path} is not on any mount of this namespace"));
    let mount = mounts.get(&status.mount_id).ok_or_else(gone)?;
    let point = shown(&mount.point).to_string();
    if mount.unbindable {
        // KERNEL(6.17): before, the jail cannot have a copy of it.
        return Err(Why::Unbindable.because(format!(
            "{point} is unbindable, so the helper cannot see it; run: mount --make-private {point}"
        )));
    }
    if rustix::fs::fstatvfs(&directory).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY)) {
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
    let is_xfs = mount.filesystem == "xfs";
    let shares_blocks = is_xfs && xfs::shares_blocks(&directory).unwrap_or(false);
    let role = Role::Pool(config.name.clone());
    let directory = Directory::new(role, &config.directory, config.directory.clone(), directory)
        .map_err(|error| format!("cannot inspect {path}: {error}"))?;
    directory.check_owner()?;
    let is_enforced = check_quotas(&directory.descriptor, config, mount)?;
    let position = Position::of(&directory.real_path, status.mount_id, mounts)?;
    let is_whole = position.inner.parent().is_none();
    Ok(HostPool { directory, marker, inherited: mount.flags(), is_whole, is_xfs, is_enforced, shares_blocks })
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

/// Checks the quotas of a pool, if it is to have any; returns whether its filesystem enforces limits.
fn check_quotas(directory: &OwnedFd, config: &PoolConfig, mount: &Mount) -> Result<bool, Refusal> {
    let (path, point) = (shown(&config.directory).to_string(), shown(&mount.point).to_string());
    let (enforcement, _) =
        quotastate::state(directory).map_err(|error| format!("cannot query the quotas of {path}: {error}"))?;
    if config.quota == QuotaMode::None {
        return Ok(enforcement == Enforcement::Enforced);
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
    Ok(true)
}
