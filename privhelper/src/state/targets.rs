//! Publish directories, the shapes of the kubelet's targets, and what the kubelet has recorded about them.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use bulkhead_protocol::{DriverName, Error, PublishName, RelativePath, TargetPath, Text, VolumeId};
use rustix::fs::{FileType, OFlags};

use super::{Kind, failed, refused, vol_data};
use crate::sys::{Errno, Error as SysError, Result as SysResult, file};

/// The name below each publish directory at which startup tries a mount. The kubelet does not mistake a directory of
/// that name for a pod's.
pub const TRIAL: &str = ".bulkhead-trial";

/// A directory below which volumes are published.
#[derive(Debug)]
pub struct PublishDirectory {
    /// Its name in requests.
    pub name: PublishName,
    /// Its path as seen on the host.
    pub host_path: Text,
    /// Its path on the host, without symbolic links.
    pub real_path: PathBuf,
    /// The directory in the jail.
    pub root: OwnedFd,
    /// Which targets are allowed below it.
    pub shape: Shape,
}

/// Why the directory that holds a target cannot be used.
#[derive(Debug)]
pub struct Obstacle {
    /// The kernel's error, or `PERM`.
    pub error: SysError,
    /// The directory on the way, as seen on the host.
    pub directory: String,
}

/// Which targets are allowed below a publish directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Any but that of the trial mount at start.
    Any,
    /// `<pod uid>/volumes/kubernetes.io~csi/<pv>/mount`: the kubelet's `pods`.
    KubeletPods,
    /// `volumeDevices/publish/<pv>/<pod uid>`: the kubelet's `plugins/kubernetes.io/csi`.
    KubeletDevices,
}

impl PublishDirectory {
    /// Checks that volumes of a kind may be published at such a target below this directory.
    ///
    /// # Errors
    /// `Refused` when they may not.
    pub fn check_shape(&self, target: &TargetPath, kind: Kind) -> Result<(), Error> {
        if self.shape.allows(&target.path, kind) {
            return Ok(());
        }
        Err(refused(format!("target {target} is not a path at which a {kind} may be published")))
    }

    /// Returns whether a path of the host is one at which a directory volume may be published.
    pub fn has_target_at(&self, point: &Path) -> bool {
        let below = point.strip_prefix(&self.real_path).ok().and_then(Path::to_str);
        let path = below.and_then(|path| path.parse().ok());
        path.is_some_and(|path| self.shape.allows(&path, Kind::Directory))
    }

    /// Checks that the kubelet has recorded, in `vol_data.json`, that this very volume of ours belongs at the target.
    /// Below other publish directories there is no such file.
    ///
    /// # Errors
    /// `Refused` when the file is missing, does not belong to root, or names another volume or driver.
    pub fn check_vol_data(&self, target: &TargetPath, volume: &VolumeId, driver: &DriverName) -> Result<(), Error> {
        if self.shape == Shape::Any {
            return Ok(());
        }
        let refused = |why: &str| {
            refused(format!("cannot publish volume {volume} at {target}: the kubelet's file vol_data.json {why}"))
        };
        let fail = |error: SysError| match error.errno {
            Errno::NOENT => refused("is missing"),
            Errno::FBIG => refused("is longer than any that the kubelet writes"),
            _ => failed("read the kubelet's vol_data.json for target", target, error),
        };
        let path = self.shape.vol_data(&target.path).ok_or_else(|| refused("does not exist for such a target"))?;
        let file = file::open(&self.root, &path, OFlags::RDONLY).map_err(fail)?;
        let status = file::status(&file).map_err(fail)?;
        if status.uid != 0 || status.file_type != FileType::RegularFile {
            return Err(refused("is not a file that belongs to root"));
        }
        let content = file::read_up_to(&file, vol_data::MAX_LENGTH).map_err(fail)?;
        let found = vol_data::parse(&content).ok_or_else(|| refused("is not a JSON object of strings"))?;
        if found.driver != driver.as_str() {
            return Err(refused("names another driver"));
        }
        if found.volume != volume.as_str() {
            return Err(refused("names another volume"));
        }
        Ok(())
    }

    /// Opens the directory that holds a target. Every directory on the way must belong to root alone: anybody else
    /// could swap two targets between a check of one and what follows from it.
    ///
    /// # Errors
    /// `PERM` when users other than root may change a directory. All directories up to the obstacle are root's alone.
    pub fn open_parent(&self, path: &RelativePath) -> Result<OwnedFd, Obstacle> {
        let mut directory = self.host_path.to_string();
        self.walk(path, &mut directory).map_err(|error| Obstacle { error, directory })
    }

    fn walk(&self, path: &RelativePath, shown: &mut String) -> SysResult<OwnedFd> {
        let mut directory = file::open_below(self.root.as_fd(), "")?;
        let mut names = path.split_last().0.split('/').filter(|name| !name.is_empty());
        loop {
            if file::is_open_to_others(&file::status(&directory)?) {
                return Err(SysError::of(Errno::PERM));
            }
            let Some(name) = names.next() else { return Ok(directory) };
            shown.push('/');
            shown.push_str(name);
            directory = file::open_below(directory.as_fd(), name)?;
        }
    }
}

impl Shape {
    /// Returns whether a volume of a kind may be published at a path.
    pub fn allows(self, path: &RelativePath, kind: Kind) -> bool {
        match (self, kind.is_device()) {
            (Self::Any, _) => path.components().next() != Some(TRIAL),
            (Self::KubeletPods, false) | (Self::KubeletDevices, true) => self.vol_data(path).is_some(),
            (Self::KubeletPods, true) | (Self::KubeletDevices, false) => false,
        }
    }

    /// Returns whether a volume of a kind may be looked at at a path: a block volume also appears at the kubelet's
    /// global map path, `volumeDevices/<pv>/dev/<pod uid>`.
    pub fn allows_look(self, path: &RelativePath, kind: Kind) -> bool {
        let is_global_map = || matches!(parts(path), ["volumeDevices", _, "dev", pod, ""] if !pod.is_empty());
        self.allows(path, kind) || self == Self::KubeletDevices && kind == Kind::Block && is_global_map()
    }

    /// Returns where the kubelet keeps `vol_data.json` for a target of this shape; `None` for any other target.
    fn vol_data(self, path: &RelativePath) -> Option<String> {
        match (self, parts(path)) {
            (Self::KubeletPods, [pod, "volumes", "kubernetes.io~csi", volume, "mount"]) => {
                Some(format!("{pod}/volumes/kubernetes.io~csi/{volume}/vol_data.json"))
            }
            (Self::KubeletDevices, ["volumeDevices", "publish", volume, pod, ""]) if !pod.is_empty() => {
                Some(format!("volumeDevices/{volume}/data/vol_data.json"))
            }
            _ => None,
        }
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

    const POD: &str = "u/volumes/kubernetes.io~csi/pv/mount";
    const DEVICE: &str = "volumeDevices/publish/pv/u";
    const GLOBAL_MAP: &str = "volumeDevices/pv/dev/u";

    fn path(text: &str) -> RelativePath {
        text.parse().expect("a relative path")
    }

    #[test]
    fn only_the_two_shapes_have_a_vol_data_file() {
        let file = |shape: Shape, text: &str| shape.vol_data(&path(text));
        assert_eq!(file(Shape::KubeletPods, POD).as_deref(), Some("u/volumes/kubernetes.io~csi/pv/vol_data.json"));
        assert_eq!(file(Shape::KubeletDevices, DEVICE).as_deref(), Some("volumeDevices/pv/data/vol_data.json"));
        for other in [
            "u/volumes/kubernetes.io~csi/pv/mount/x", "u/volumes/kubernetes.io~csi/pv", "u/volumes/other/pv/mount",
            "u/other/kubernetes.io~csi/pv/mount", "u/volumes/kubernetes.io~csi/pv/mounts", "mount", DEVICE,
        ] {
            assert_eq!(file(Shape::KubeletPods, other), None, "{other}");
        }
        for other in [
            "volumeDevices/publish/pv", "volumeDevices/publish/pv/u/x", "volumeDevices/publish/pv/u/x/y",
            "volumeDevices/staging/pv/u", "other/publish/pv/u", GLOBAL_MAP, POD,
        ] {
            assert_eq!(file(Shape::KubeletDevices, other), None, "{other}");
        }
        assert_eq!(file(Shape::Any, POD), None);
    }

    #[test]
    fn each_kind_is_published_in_its_own_shape() {
        for (shape, text, directory, block) in [
            (Shape::KubeletPods, POD, true, false),
            (Shape::KubeletPods, DEVICE, false, false),
            (Shape::KubeletPods, "u/volumes", false, false),
            (Shape::KubeletDevices, DEVICE, false, true),
            (Shape::KubeletDevices, POD, false, false),
            (Shape::KubeletDevices, GLOBAL_MAP, false, false),
            (Shape::Any, "anything", true, true),
            (Shape::Any, POD, true, true),
            (Shape::Any, TRIAL, false, false),
            (Shape::Any, ".bulkhead-trial/a", false, false),
            (Shape::Any, "a/.bulkhead-trial", true, true),
        ] {
            assert_eq!(shape.allows(&path(text), Kind::Directory), directory, "{shape:?} {text}");
            assert_eq!(shape.allows(&path(text), Kind::Block), block, "{shape:?} {text}");
            // What may be published may be looked at.
            assert!(!directory || shape.allows_look(&path(text), Kind::Directory), "{shape:?} {text}");
            assert!(!block || shape.allows_look(&path(text), Kind::Block), "{shape:?} {text}");
        }
    }

    /// The kubelet's directory for pods, whose root on the host is this one.
    fn pods(root: &str, real_path: &str) -> PublishDirectory {
        PublishDirectory {
            name: "pods".parse().expect("a name"),
            host_path: Text::new("/k/pods"),
            real_path: real_path.into(),
            root: file::open_at_start(root, OFlags::PATH).expect("a directory"),
            shape: Shape::KubeletPods,
        }
    }

    #[test]
    fn a_path_of_the_host_is_a_target_if_its_shape_is_one_below_the_real_directory() {
        let pods = pods("/", "/data/pods");
        assert!(pods.has_target_at(Path::new("/data/pods/u/volumes/kubernetes.io~csi/pv/mount")));
        for other in ["/data/pods", "/data/pods/u", "/k/pods/u/volumes/kubernetes.io~csi/pv/mount", "/"] {
            assert!(!pods.has_target_at(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn every_directory_that_leads_to_a_target_belongs_to_root_alone() {
        let open = |root: &str, text| pods(root, root).open_parent(&path(text)).map(drop);
        assert!(open("/", "target").is_ok() && open("/usr", "lib/target").is_ok());
        let obstacle = |root, text| open(root, text).map_err(|found| (found.error.errno, found.directory));
        assert_eq!(obstacle("/usr", "no-such/lib/target"), Err((Errno::NOENT, "/k/pods/no-such".to_owned())));
        assert_eq!(obstacle("/tmp", "target"), Err((Errno::PERM, "/k/pods".to_owned())));
    }

    #[test]
    fn a_refusal_of_a_targets_shape_names_the_target_and_the_kind() {
        let pods = pods("/", "/");
        let name = &pods.name;
        let check = |text, kind| pods.check_shape(&TargetPath { directory: name.clone(), path: path(text) }, kind);
        assert!(check(POD, Kind::Directory).is_ok());
        let error = check(POD, Kind::Block).expect_err("it is for directories");
        assert_eq!(error.kind, bulkhead_protocol::ErrorKind::Refused);
        let message = format!("target pods:{POD} is not a path at which a block volume may be published");
        assert_eq!(error.message.as_str(), message);
    }

    #[test]
    fn the_global_map_path_is_for_looking_at_block_volumes_only() {
        let look = |shape: Shape, text: &str, kind| shape.allows_look(&path(text), kind);
        assert!(look(Shape::KubeletDevices, GLOBAL_MAP, Kind::Block));
        assert!(!look(Shape::KubeletDevices, GLOBAL_MAP, Kind::Directory));
        assert!(!look(Shape::KubeletPods, GLOBAL_MAP, Kind::Block));
        for other in ["volumeDevices/pv/dev", "volumeDevices/pv/dev/u/x", "volumeDevices/pv/data/u", "other/pv/dev/u"] {
            assert!(!look(Shape::KubeletDevices, other, Kind::Block), "{other}");
        }
    }
}
