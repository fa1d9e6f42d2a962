//! Publish directories, the shapes of the kubelet's targets, and the kubelet's own word for them.

use std::os::fd::{AsFd, OwnedFd};

use bulkhead_protocol::{DriverName, Error, ErrorKind, PublishName, RelativePath, TargetPath, Text, VolumeId};
use rustix::fs::{FileType, OFlags};

use super::failed;
use super::record::{self, Record};
use crate::sys::Errno;
use crate::sys::file;

/// A directory below which volumes are published.
#[derive(Debug)]
pub struct PublishDirectory {
    /// Its name in requests.
    pub name: PublishName,
    /// Its path as the host spells it.
    pub host_path: Text,
    /// The directory in the jail.
    pub root: OwnedFd,
    /// Which targets are allowed below it.
    pub shape: Shape,
}

/// Which targets are allowed below a publish directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Any.
    Any,
    /// `<pod uid>/volumes/kubernetes.io~csi/<pv>/mount`: the kubelet's `pods`.
    KubeletPods,
    /// `volumeDevices/publish/<pv>/<pod uid>`: the kubelet's `plugins/kubernetes.io/csi`.
    KubeletDevices,
}

/// What a target is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Publishing a directory.
    Directory,
    /// Publishing a device.
    Device,
    /// Only looking: also the kubelet's global map path, `volumeDevices/<pv>/dev/<pod uid>`.
    Look,
}

impl PublishDirectory {
    /// Whether a target has the shape that this directory and purpose want.
    ///
    /// # Errors
    /// `Refused` when it has not.
    pub fn check_shape(&self, target: &TargetPath, purpose: Purpose) -> Result<(), Error> {
        if self.shape == Shape::Any || purpose == Purpose::Look && is_global_map(self.shape, &target.path) {
            return Ok(());
        }
        let wanted = matches!(
            (self.shape, purpose),
            (Shape::KubeletPods, Purpose::Directory | Purpose::Look)
                | (Shape::KubeletDevices, Purpose::Device | Purpose::Look)
        );
        match record_path(self.shape, &target.path) {
            Some(_) if wanted => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Refused,
                format!("target {target} is none of the kubelet's for this kind of volume"),
            )),
        }
    }

    /// Asks the kubelet's record whether this very volume of ours belongs at the target. Elsewhere nobody is asked.
    ///
    /// # Errors
    /// `Refused` when the record is missing, is not root's, or names another volume or driver.
    pub fn check_record(&self, target: &TargetPath, volume: &VolumeId, driver: &DriverName) -> Result<(), Error> {
        if self.shape == Shape::Any {
            return Ok(());
        }
        let refused = |why: &str| {
            Error::new(
                ErrorKind::Refused,
                format!("publish {volume} at {target}: the kubelet's record vol_data.json {why}"),
            )
        };
        let path = record_path(self.shape, &target.path).ok_or_else(|| refused("cannot be there"))?;
        let record = match file::open(&self.root, &path, OFlags::RDONLY) {
            Ok(record) => record,
            Err(Errno::NOENT) => return Err(refused("is missing")),
            Err(errno) => return Err(failed("open the kubelet's record for", target, errno)),
        };
        let status =
            file::status(&record).map_err(|errno| failed("look at the kubelet's record for", target, errno))?;
        if status.uid != 0 || status.file_type != FileType::RegularFile {
            return Err(refused("is no file of root's"));
        }
        let content = file::read_up_to(&record, record::MAX_LENGTH).map_err(|errno| match errno {
            Errno::FBIG => refused("is longer than the kubelet's ever are"),
            errno => failed("read the kubelet's record for", target, errno),
        })?;
        match record::parse(&content) {
            None => Err(refused("cannot be read: it is no JSON object of strings")),
            Some(Record { driver: named, .. }) if named != driver.as_str() => Err(refused("names another driver")),
            Some(Record { volume: named, .. }) if named != volume.as_str() => Err(refused("names another volume")),
            Some(_) => Ok(()),
        }
    }

    /// Opens the directory that holds a target.
    pub fn open_parent(&self, path: &RelativePath) -> Result<OwnedFd, Errno> {
        file::open_below(self.root.as_fd(), path.split_last().0)
    }
}

fn is_global_map(shape: Shape, path: &RelativePath) -> bool {
    shape == Shape::KubeletDevices && matches!(parts(path), ["volumeDevices", _, "dev", pod, ""] if !pod.is_empty())
}

/// Where the kubelet keeps its record for a target of its shape; `None` for any other target.
fn record_path(shape: Shape, path: &RelativePath) -> Option<String> {
    match (shape, parts(path)) {
        (Shape::KubeletPods, [pod, "volumes", "kubernetes.io~csi", volume, "mount"]) => {
            Some(format!("{pod}/volumes/kubernetes.io~csi/{volume}/vol_data.json"))
        }
        (Shape::KubeletDevices, ["volumeDevices", "publish", volume, pod, ""]) if !pod.is_empty() => {
            Some(format!("volumeDevices/{volume}/data/vol_data.json"))
        }
        _ => None,
    }
}

/// Five components, the last ones empty if there are fewer; all empty if there are more.
fn parts(path: &RelativePath) -> [&str; 5] {
    let mut components = path.components();
    let parts = std::array::from_fn(|_| components.next().unwrap_or(""));
    if components.next().is_some() { [""; 5] } else { parts }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(shape: Shape, path: &str) -> Option<String> {
        record_path(shape, &path.parse().expect("a relative path"))
    }

    #[test]
    fn only_the_two_shapes_have_a_record() {
        assert_eq!(
            record(Shape::KubeletPods, "u/volumes/kubernetes.io~csi/pv/mount").as_deref(),
            Some("u/volumes/kubernetes.io~csi/pv/vol_data.json")
        );
        assert_eq!(
            record(Shape::KubeletDevices, "volumeDevices/publish/pv/u").as_deref(),
            Some("volumeDevices/pv/data/vol_data.json")
        );
        for path in [
            "u/volumes/kubernetes.io~csi/pv/mount/x", "u/volumes/kubernetes.io~csi/pv", "u/volumes/other/pv/mount",
            "mount",
        ] {
            assert_eq!(record(Shape::KubeletPods, path), None, "{path}");
        }
        for path in [
            "volumeDevices/publish/pv", "volumeDevices/publish/pv/u/x", "volumeDevices/staging/pv/u",
            "volumeDevices/pv/dev/u",
        ] {
            assert_eq!(record(Shape::KubeletDevices, path), None, "{path}");
        }
    }
}
