//! Whether a directory is fit to be served as a pool. This is checked while the host's own tree is in sight.

use std::os::fd::OwnedFd;

use bulkhead_protocol::{MountFlags, QuotaMode};
use rustix::fs::{OFlags, StatVfsMountFlags};

use super::directory::{Directory, Role};
use super::marker;
use super::mountinfo::{Mount, Table};
use crate::state::PoolConfig;
use crate::sys::file;
use crate::sys::quota::{self, QuotaState};

/// A pool that passed its checks.
#[derive(Debug)]
pub struct HostPool {
    /// Its directory.
    pub directory: Directory,
    /// Whether it already has a marker, rather than being about to get one.
    pub marked: bool,
    /// Its marker, once it is locked.
    pub marker: Option<OwnedFd>,
    /// The flags that every mount of its volumes has because the pool's own mount has them.
    pub inherited: MountFlags,
    /// Whether its filesystem has a journal.
    pub journal: bool,
    /// Problems that do not keep it from being served.
    pub warnings: Vec<String>,
}

/// Checks a pool, and changes nothing.
///
/// # Errors
/// One sentence on why it is not to be served and how to fix that.
pub fn inspect(config: &PoolConfig, mounts: &Table) -> Result<HostPool, String> {
    let shown = config.directory.display();
    let directory = file::open_at_start(&config.directory, OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(|errno| format!("cannot open {shown}: {errno}"))?;
    let status = file::status(&directory).map_err(|errno| format!("cannot inspect {shown}: {errno}"))?;
    // This comes first: without its disk it does not matter what else is wrong with the filesystem visible in its
    // place.
    let marked = marker::find(&directory, status.mount_root, config)?;
    let mount = mounts.get(&status.mount_id).ok_or_else(|| format!("{shown} is not on any mount of this namespace"))?;
    let point = mount.point.display();
    if rustix::fs::fstatvfs(&directory).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        return Err(format!("{point} is mounted read-only; find out why (dmesg), then mount it read-write"));
    }
    if !matches!(mount.filesystem.as_str(), "xfs" | "ext4") {
        return Err(format!("{shown} is on {}; a pool must be on XFS or ext4", mount.filesystem));
    }
    if file::is_open_to_others(&status) {
        return Err(format!(
            "{shown} can be changed by users other than root; run: chown root {shown}; chmod go-w {shown}"
        ));
    }
    if config.quota == QuotaMode::Enforced {
        check_quotas(&directory, config, mount)?;
    }
    let mut warnings = Vec::new();
    if mount.has("noexec") {
        warnings.push(format!("{point} is mounted noexec, so no program can be run from this pool's volumes"));
    }
    let role = Role::Pool(config.name.clone());
    let directory = Directory::new(role, &config.directory, config.directory.clone(), directory)
        .map_err(|errno| format!("cannot inspect {shown}: {errno}"))?;
    Ok(HostPool { directory, marked, marker: None, inherited: mount.flags(), journal: has_journal(mount), warnings })
}

/// XFS always has a journal. ext4 may be made without one; `journal_task` is the number of the thread that writes it.
fn has_journal(mount: &Mount) -> bool {
    let read = |path: &str| {
        let content = file::open_at_start(path, OFlags::RDONLY).and_then(|open| file::read_up_to(open, 4096));
        String::from_utf8(content.unwrap_or_default()).unwrap_or_default()
    };
    let (major, minor) = mount.device;
    let device = read(&format!("/sys/dev/block/{major}:{minor}/uevent"));
    let name = device.lines().find_map(|line| line.strip_prefix("DEVNAME=")).unwrap_or_default();
    mount.filesystem == "xfs" || read(&format!("/sys/fs/ext4/{name}/journal_task")).trim().parse::<u32>().is_ok()
}

fn check_quotas(directory: &OwnedFd, config: &PoolConfig, mount: &Mount) -> Result<(), String> {
    let (shown, point) = (config.directory.display(), mount.point.display());
    let remedy = if mount.filesystem == "xfs" {
        "mount it with -o prjquota (a remount is not enough)"
    } else {
        "run tune2fs -O project,quota -Q prjquota on the unmounted device and mount it with -o prjquota"
    };
    match quota::state(directory).map_err(|errno| format!("cannot query the quotas of {shown}: {errno}"))? {
        QuotaState::Enforced => {}
        QuotaState::Accounted => {
            return Err(format!("{point} counts project quotas but does not enforce them; {remedy}"));
        }
        QuotaState::Off => {
            return Err(format!(
                "{point} has no project quotas; {remedy}, or configure quota=none to run without enforced sizes"
            ));
        }
    }
    let attributes =
        file::attributes(directory).map_err(|errno| format!("cannot read the project id of {shown}: {errno}"))?;
    if attributes.fsx_projid != 0 || attributes.fsx_xflags & file::PROJECT_INHERIT != 0 {
        return Err(format!(
            "{shown} itself is in project {}; remove its project id: xfs_quota -x -c 'project -C', or chattr -P -p 0 {shown}",
            attributes.fsx_projid
        ));
    }
    Ok(())
}
