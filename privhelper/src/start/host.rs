//! Step 2 of the helper's life: what can only be seen, opened or judged while the host's own tree is in sight.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::start::config::Config;
use crate::start::marker;
use crate::start::mountinfo::{self, Mount};
use crate::state::{PoolConfig, Shape};
use crate::sys::{self, Errno, file, quota, quota::QuotaState};
use bulkhead_protocol::{MountFlags, PublishName, QuotaMode, Socket};

/// The host, as far as the helper needs it.
#[derive(Debug)]
pub struct Host {
    /// All mounts.
    pub mounts: Vec<Mount>,
    /// Numbers of the loop devices that exist.
    pub loops: Vec<u32>,
    /// `/dev/loop-control`.
    pub loop_control: OwnedFd,
    /// The pools, in the order of the configuration.
    pub pools: Vec<Result<HostPool, String>>,
    /// The publish directories.
    pub publish: Vec<HostPublish>,
    /// Directories and names of the frontend's sockets.
    pub sockets: Vec<HostSocket>,
    /// The mount namespace that all of these are open in. Nobody else may be in it, as in a container: then it would end
    /// when the helper leaves it, and no mount would be seen there any more.
    pub namespace: OwnedFd,
}

/// A pool that passed its checks.
#[derive(Debug)]
pub struct HostPool {
    /// Its directory on the host.
    pub directory: OwnedFd,
    /// The locked marker.
    pub marker: OwnedFd,
    /// What every mount of its volumes has because the pool's own mount has it.
    pub inherited: MountFlags,
    /// What is not right, but does not keep it from being served.
    pub warnings: Vec<String>,
}

/// Where one of the frontend's sockets goes.
#[derive(Debug)]
pub struct HostSocket {
    /// Which of the two.
    pub socket: Socket,
    /// The directory's path.
    pub path: PathBuf,
    /// The directory.
    pub directory: OwnedFd,
    /// The name in it.
    pub name: String,
}

/// A publish directory that passed its checks.
#[derive(Debug)]
pub struct HostPublish {
    /// Its name in requests.
    pub name: PublishName,
    /// Its path, as configured.
    pub path: PathBuf,
    /// Its path without symbolic links.
    pub real_path: PathBuf,
    /// Which targets are allowed in it.
    pub shape: Shape,
    /// The directory.
    pub directory: OwnedFd,
}

/// Looks at the host. With `changes`, makes directories and markers that are missing; without, leaves all as it is.
///
/// # Errors
/// One sentence on what is doubtful and how to mend it. A pool's own trouble is in its entry instead.
pub fn inspect(config: &Config, changes: bool) -> Result<Host, String> {
    check_kernel()?;
    let mounts =
        mountinfo::parse(&sys::mount::table().map_err(|errno| format!("cannot read /proc/self/mountinfo: {errno}"))?);
    let loop_control = file::open_at_start("/dev/loop-control", OFlags::RDWR)
        .map_err(|errno| format!("cannot open /dev/loop-control: {errno}; load the loop module (modprobe loop)"))?;
    let mut publish = Vec::new();
    for (name, path, shape) in publish_directories(config)? {
        publish.push(open_publish(name, path, shape, &mounts, config, changes)?);
    }
    let pools: Vec<_> = config.pools.iter().map(|pool| inspect_pool(pool, &mounts, changes)).collect();
    refuse_overlap(config, &pools, &publish)?;
    let mut sockets = Vec::new();
    for (socket, path) in [(Socket::Csi, &config.csi_socket), (Socket::Registration, &config.registration_socket)] {
        if let Some(path) = path {
            let (parent, name) = (path.parent().unwrap_or(Path::new("/")), path.file_name().unwrap_or_default());
            let (path, directory) = open_directory(parent, config, changes)?;
            sockets.push(HostSocket { socket, path, directory, name: name.to_string_lossy().into_owned() });
        }
    }
    let namespace = file::open_at_start("/proc/self/ns/mnt", OFlags::RDONLY)
        .map_err(|errno| format!("cannot open /proc/self/ns/mnt: {errno}"))?;
    Ok(Host { mounts, loops: loop_numbers()?, loop_control, pools, publish, sockets, namespace })
}

/// 5.14 is the first kernel with quotactl_fd(2); everything else that is needed is older.
pub fn check_kernel() -> Result<(), String> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 14) { Ok(()) } else { Err(format!("kernel {release} is too old: 5.14 or later is needed")) }
}

fn publish_directories(config: &Config) -> Result<Vec<(PublishName, PathBuf, Shape)>, String> {
    let mut all = Vec::new();
    if let Some(kubelet) = &config.kubelet {
        let name = |text: &str| text.parse().map_err(|error| format!("publish directory {text}: {error}"));
        all.push((name("kubelet-pods")?, kubelet.join("pods"), Shape::KubeletPods));
        all.push((name("kubelet-csi")?, kubelet.join("plugins/kubernetes.io/csi"), Shape::KubeletDevices));
    }
    all.extend(config.publish.iter().map(|(name, path)| (name.clone(), path.clone(), Shape::Any)));
    Ok(all)
}

fn open_publish(
    name: PublishName,
    path: PathBuf,
    shape: Shape,
    mounts: &[Mount],
    config: &Config,
    changes: bool,
) -> Result<HostPublish, String> {
    let wanted = path;
    let (path, directory) = open_directory(&wanted, config, changes)?;
    let shown = path.display();
    let status = file::status(&directory).map_err(|errno| format!("cannot look at {shown}: {errno}"))?;
    if file::is_open_to_others(&status) {
        return Err(format!(
            "{shown} is not root's alone, and who may rename in it can hide a mount; run: chown root {shown}; chmod go-w {shown}"
        ));
    }
    let mount = mounts.iter().find(|mount| mount.id == status.mount_id);
    let mount = mount.ok_or_else(|| format!("{shown} is on no mount of this namespace"))?;
    if !mount.shared {
        return Err(format!(
            "{shown}: its mount {} is not shared, so nobody would see what is published; run: mount --make-rshared {}",
            mount.point.display(),
            mount.point.display()
        ));
    }
    if mount.slave {
        return Err(format!(
            "{shown}: its mount {} is a slave, so the host would not see what is published; run the helper in the host's mount namespace, or with Bidirectional propagation",
            mount.point.display()
        ));
    }
    let missing = wanted.strip_prefix(&path).unwrap_or(Path::new(""));
    Ok(HostPublish { name, real_path: real_path(&directory, &path).join(missing), path, shape, directory })
}

/// Opens a directory of the configuration, and tells its path. Subtrees of the kubelet's directory are made where they
/// are missing; when nothing may be changed, the next directory above stands in for one.
fn open_directory(path: &Path, config: &Config, changes: bool) -> Result<(PathBuf, OwnedFd), String> {
    let fail = |errno: Errno| format!("cannot open the directory {}: {errno}", path.display());
    let below = config.kubelet.as_ref().and_then(|kubelet| Some((kubelet, path.strip_prefix(kubelet).ok()?)));
    match (file::open_at_start(path, OFlags::PATH | OFlags::DIRECTORY), below, path.parent()) {
        (Err(Errno::NOENT), Some((kubelet, rest)), Some(parent)) if kubelet != path => {
            if !changes {
                return open_directory(parent, config, changes);
            }
            let (_, root) = open_directory(kubelet, config, changes)?;
            let mode = Mode::RWXU | Mode::RGRP | Mode::XGRP;
            file::make_directories(root.as_fd(), &rest.to_string_lossy(), mode).map_err(fail)?;
            let made = file::open_at_start(path, OFlags::PATH | OFlags::DIRECTORY).map_err(fail)?;
            Ok((path.to_owned(), made))
        }
        (result, ..) => Ok((path.to_owned(), result.map_err(fail)?)),
    }
}

fn inspect_pool(config: &PoolConfig, mounts: &[Mount], changes: bool) -> Result<HostPool, String> {
    let shown = config.directory.display();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory =
        file::open_at_start(&config.directory, flags).map_err(|errno| format!("cannot open {shown}: {errno}"))?;
    let status = file::status(&directory).map_err(|errno| format!("cannot look at {shown}: {errno}"))?;
    marker::refuse_unmounted(&directory, config, &status)?;
    let mount = mounts
        .iter()
        .find(|mount| mount.id == status.mount_id)
        .ok_or_else(|| format!("{shown} is on no mount of this namespace"))?;
    let point = mount.point.display();
    let read_only = rustix::fs::fstatvfs(&directory)
        .is_ok_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    if read_only {
        return Err(format!("{point} is mounted read-only; find out why (dmesg), then mount it read-write"));
    }
    if !matches!(mount.filesystem.as_str(), "xfs" | "ext4") {
        return Err(format!("{shown} is on {}; a pool must be on XFS or ext4", mount.filesystem));
    }
    if file::is_open_to_others(&status) {
        return Err(format!("{shown} is not root's alone; run: chown root {shown}; chmod go-w {shown}"));
    }
    let mut warnings = Vec::new();
    if mount.has("noexec") {
        warnings.push(format!("{point} is mounted noexec, and so no program runs from a volume of this pool"));
    }
    if config.quota == QuotaMode::Enforced {
        let option = if mount.filesystem == "xfs" {
            "mount it with -o prjquota (a remount does not do)"
        } else {
            "run tune2fs -O project,quota -Q prjquota on the unmounted device and mount it with -o prjquota"
        };
        match quota::state(&directory).map_err(|errno| format!("cannot ask {shown} for quotas: {errno}"))? {
            QuotaState::Enforced => {}
            QuotaState::Accounted => {
                return Err(format!("{point} counts project quotas but does not enforce them; {option}"));
            }
            QuotaState::Off => {
                return Err(format!(
                    "{point} has no project quotas; {option}, or configure quota=none to do without enforced sizes"
                ));
            }
        }
        let attributes =
            file::attributes(&directory).map_err(|errno| format!("cannot read the project id of {shown}: {errno}"))?;
        if attributes.project != 0 || attributes.flags & file::Attributes::PROJECT_INHERIT != 0 {
            return Err(format!(
                "{shown} itself is in project {}; take it out: xfs_quota -x -c 'project -C', or chattr -P -p 0 {shown}",
                attributes.project
            ));
        }
    }
    let marker = marker::lock(&directory, config, changes)?;
    Ok(HostPool { directory, marker, inherited: mount.flags(), warnings })
}

/// Pools and publish directories must lie apart: a pool below a publish directory would be visible twice, and a publish
/// directory around the kubelet's would give away what its shapes and records keep.
fn refuse_overlap(config: &Config, pools: &[Result<HostPool, String>], publish: &[HostPublish]) -> Result<(), String> {
    let served = config.pools.iter().zip(pools).filter_map(|(pool, found)| Some((pool, found.as_ref().ok()?)));
    let pools =
        served.map(|(pool, found)| (format!("pool {}", pool.name), real_path(&found.directory, &pool.directory)));
    let publish = publish.iter().map(|found| (format!("publish directory {}", found.name), found.real_path.clone()));
    let all: Vec<_> = pools.chain(publish).collect();
    for (index, (name, path)) in all.iter().enumerate() {
        for (other, inner) in all.iter().skip(index.saturating_add(1)) {
            if path.starts_with(inner) || inner.starts_with(path) {
                return Err(format!("{name} and {other} lie inside one another; keep them apart"));
            }
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "reads the name of what is open already, for comparing only")]
fn real_path(directory: &OwnedFd, otherwise: &Path) -> PathBuf {
    std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).unwrap_or_else(|_| otherwise.to_owned())
}

#[expect(clippy::disallowed_methods, reason = "the kernel's own directory, before the jail")]
fn loop_numbers() -> Result<Vec<u32>, String> {
    let entries = std::fs::read_dir("/sys/block").map_err(|error| format!("cannot list /sys/block: {error}"))?;
    let number = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.ok()?.file_name().to_str()?.strip_prefix("loop")?.parse().ok()
    };
    let mut numbers: Vec<u32> = entries.filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}
