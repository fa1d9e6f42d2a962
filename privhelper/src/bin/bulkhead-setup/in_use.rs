//! Whether somebody may be writing to a pool's volumes: where the host shows one, and which loop device has an image.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_privhelper::layout::IMAGE;
use bulkhead_privhelper::log::shown;
use bulkhead_privhelper::mountinfo::MountTable;
use bulkhead_privhelper::{Called, SysError, file};
use bulkhead_protocol::VolumeId;
use rustix::io::Errno;

/// Returns what of a pool is in use, in words: the first thing that is found.
///
/// # Errors
/// The kernel's error when it cannot be found out.
pub fn first(pool: &OwnedFd, volumes: &BTreeSet<&VolumeId>) -> Result<Option<String>, SysError> {
    let found =
        mounted(pool, volumes)?.map(|(volume, point)| format!("volume {volume} is mounted at {}", shown(&point)));
    match found {
        Some(found) => Ok(Some(found)),
        None => attached(Path::new("/sys/block"), volumes),
    }
}

/// A volume that is mounted in this namespace, and where.
#[expect(clippy::disallowed_methods, reason = "reads the name of what is open already, for comparing only")]
fn mounted(pool: &OwnedFd, volumes: &BTreeSet<&VolumeId>) -> Result<Option<(VolumeId, PathBuf)>, SysError> {
    let (status, mut table) = (file::status(pool)?, MountTable::open()?);
    let path = std::fs::read_link(format!("/proc/self/fd/{}", pool.as_raw_fd()));
    let path = path.map_err(errno).by("readlink")?;
    let mut inner = None;
    table.each(|mount| {
        if mount.id == status.mount_id {
            inner = mount.inner(&path);
        }
        ControlFlow::Continue(())
    })?;
    let inner = inner.ok_or(SysError::of(Errno::NOENT))?;
    let mut found = None;
    table.each(|mount| {
        let below = mount.root.strip_prefix(&inner).ok().filter(|_| mount.device == status.id.device);
        let first = below.and_then(|below| below.iter().next()?.to_str()?.parse().ok());
        match first.filter(|id| volumes.contains(id)) {
            Some(id) => {
                found = Some((id, mount.point.clone()));
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        }
    })?;
    Ok(found)
}

/// A loop device of this host with an image that has the name of a volume's. The path before that name is one of the
/// helper's own root, and is lost when a helper ends.
#[expect(clippy::disallowed_methods, reason = "sysfs is the kernel's, and is read by path")]
fn attached(devices: &Path, volumes: &BTreeSet<&VolumeId>) -> Result<Option<String>, SysError> {
    for device in std::fs::read_dir(devices).map_err(errno).by("getdents64")? {
        let device = device.map_err(errno).by("getdents64")?;
        let backing = match std::fs::read_to_string(device.path().join("loop/backing_file")).map_err(errno) {
            // It is no loop device, or it is not bound, or not any more.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NODEV | Errno::NXIO) => continue,
            backing => backing.by("read")?,
        };
        if let Some(id) = volume_of(Path::new(backing.trim_end().trim_end_matches(" (deleted)")))
            && volumes.contains(&id)
        {
            return Ok(Some(format!("volume {id} is attached to {}", device.file_name().display())));
        }
    }
    Ok(None)
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// The volume of which an image is, by its path.
fn volume_of(image: &Path) -> Option<VolumeId> {
    let id = image.parent()?.file_name()?.to_str()?.parse().ok()?;
    (image.file_name()? == IMAGE).then_some(id)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test's own files")]
mod tests {
    use super::*;

    #[test]
    fn an_attached_image_is_known_by_its_volumes_name() {
        let path = std::env::temp_dir().join(format!("bulkhead-in-use-{}", std::process::id()));
        let (ours, other): (VolumeId, VolumeId) = ("vol-a".parse().expect("an id"), "vol-b".parse().expect("an id"));
        let said = |backing: &str, volumes: &[&VolumeId]| {
            let device = path.join("loop524288/loop");
            std::fs::create_dir_all(&device).expect("a directory");
            std::fs::write(device.join("backing_file"), format!("{backing}\n")).expect("a file");
            attached(&path, &volumes.iter().copied().collect()).expect("it can be listed")
        };
        let found = Some("volume vol-a is attached to loop524288".to_owned());
        let outcomes = [
            said("/bulkhead-pools/fast/vol-a/image", &[&ours, &other]),
            said("/vol-a/image (deleted)", &[&ours]),
            said("/vol-a/image", &[&other]),
            said("/vol-a/data", &[&ours]),
            said("/image", &[&ours]),
        ];
        std::fs::remove_dir_all(&path).expect("an end");
        let gone = attached(&path, &BTreeSet::new()).map_err(|error| error.errno);
        assert_eq!(gone, Err(Errno::NOENT), "what cannot be looked at may be attached");
        assert_eq!(outcomes, [found.clone(), found, None, None, None]);
    }
}
