//! The shapes of the kubelet's targets.

use bulkhead_protocol::{Error, RelativePath, TargetPath};

use super::kind::Kind;
use crate::errors::refused;

/// The name below each publish directory at which startup tries a mount. The kubelet does not mistake a directory of
/// that name for a pod's.
pub const TRIAL: &str = ".bulkhead-trial";

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

impl Shape {
    /// Checks that volumes of a kind may be published at such a target below a directory of this shape.
    ///
    /// # Errors
    /// `Refused` when they may not.
    pub fn check(self, target: &TargetPath, kind: Kind) -> Result<(), Error> {
        if self.allows(&target.path, kind) {
            return Ok(());
        }
        Err(refused(format!("target {target} is not a path at which a {kind} may be published")))
    }

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
    pub fn vol_data(self, path: &RelativePath) -> Option<String> {
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

    #[test]
    fn a_refusal_of_a_targets_shape_names_the_target_and_the_kind() {
        let target = |text| TargetPath { directory: "pods".parse().expect("a name"), path: path(text) };
        let check = |text, kind| Shape::KubeletPods.check(&target(text), kind);
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
