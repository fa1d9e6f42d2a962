//! Publish directories, as the keeper knows them: it sees none of them.

use std::path::{Path, PathBuf};

use bulkhead_protocol::{Error, PublishName, RelativePath, TargetPath, Text};

use super::Kind;
use super::refusals::wrong_shape;
use crate::place::{Shape, parts};

/// A directory below which volumes are published.
#[derive(Debug)]
pub struct PublishDirectory {
    /// Its name in requests.
    pub name: PublishName,
    /// Its path as seen on the host.
    pub host_path: Text,
    /// Its path on the host, without symbolic links.
    pub real_path: PathBuf,
    /// Which targets are allowed below it.
    pub shape: Shape,
}

impl PublishDirectory {
    /// Checks that a volume of a kind may be published at a target below this directory.
    ///
    /// # Errors
    /// `Refused` when it may not.
    pub fn check(&self, target: &TargetPath, kind: Kind) -> Result<(), Error> {
        if self.shape.allows(&target.path, kind) { Ok(()) } else { Err(wrong_shape(target, kind)) }
    }

    /// Returns whether a path of the host is one at which a directory volume may be published.
    pub fn has_target_at(&self, point: &Path) -> bool {
        let below = point.strip_prefix(&self.real_path).ok().and_then(Path::to_str);
        let path = below.and_then(|path| path.parse().ok());
        path.is_some_and(|path| self.shape.allows(&path, Kind::Directory))
    }
}

/// Returns whether a volume of a kind may be looked at at a path below a directory of this shape: a block volume also
/// appears at the kubelet's global map path, `volumeDevices/<pv>/dev/<pod uid>`.
pub fn may_be_looked_at(shape: Shape, path: &RelativePath, kind: Kind) -> bool {
    let is_global_map = || matches!(parts(path), ["volumeDevices", _, "dev", pod, ""] if !pod.is_empty());
    shape.allows(path, kind) || shape == Shape::KubeletDevices && kind == Kind::Block && is_global_map()
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "u/volumes/kubernetes.io~csi/pv/mount";
    const DEVICE: &str = "volumeDevices/publish/pv/u";
    const GLOBAL_MAP: &str = "volumeDevices/pv/dev/u";

    fn directory(shape: Shape) -> PublishDirectory {
        PublishDirectory {
            name: "pods".parse().expect("a name"),
            host_path: Text::new("/k/pods"),
            real_path: "/data/pods".into(),
            shape,
        }
    }

    #[test]
    fn a_refusal_of_a_targets_shape_names_the_target_and_the_kind() {
        let target =
            |text: &str| TargetPath { directory: "pods".parse().expect("a name"), path: text.parse().expect("a path") };
        let check = |text, kind| directory(Shape::KubeletPods).check(&target(text), kind);
        assert!(check(POD, Kind::Directory).is_ok());
        let error = check(POD, Kind::Block).expect_err("it is for directories");
        assert_eq!(error.kind, bulkhead_protocol::ErrorKind::Refused);
        let message = format!("target pods:{POD} is not a path at which a block volume may be published");
        assert_eq!(error.message.as_str(), message);
    }

    #[test]
    fn what_may_be_published_may_be_looked_at_and_block_volumes_at_the_global_map_path() {
        let look = |shape, text: &str, kind| may_be_looked_at(shape, &text.parse().expect("a path"), kind);
        assert!(look(Shape::KubeletPods, POD, Kind::Directory) && look(Shape::KubeletDevices, DEVICE, Kind::Block));
        assert!(look(Shape::Any, POD, Kind::Directory) && look(Shape::Any, POD, Kind::Block));
        assert!(look(Shape::KubeletDevices, GLOBAL_MAP, Kind::Block));
        assert!(!look(Shape::KubeletDevices, GLOBAL_MAP, Kind::Directory));
        assert!(!look(Shape::KubeletPods, GLOBAL_MAP, Kind::Block));
        for other in ["volumeDevices/pv/dev", "volumeDevices/pv/dev/u/x", "volumeDevices/pv/data/u", "other/pv/dev/u"] {
            assert!(!look(Shape::KubeletDevices, other, Kind::Block), "{other}");
        }
    }

    #[test]
    fn a_path_of_the_host_is_a_target_if_its_shape_is_one_below_the_real_directory() {
        let pods = directory(Shape::KubeletPods);
        assert!(pods.has_target_at(Path::new("/data/pods/u/volumes/kubernetes.io~csi/pv/mount")));
        for other in ["/data/pods", "/data/pods/u", "/k/pods/u/volumes/kubernetes.io~csi/pv/mount", "/"] {
            assert!(!pods.has_target_at(Path::new(other)), "{other}");
        }
    }
}
