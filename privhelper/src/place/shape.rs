//! The shapes of the kubelet's targets.

use bulkhead_protocol::RelativePath;

use super::kind::Kind;

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
    /// Returns whether a volume of a kind may be published at a path.
    pub fn allows(self, path: &RelativePath, kind: Kind) -> bool {
        match (self, kind.is_device()) {
            (Self::Any, _) => path.components().next() != Some(TRIAL),
            (Self::KubeletPods, false) | (Self::KubeletDevices, true) => self.vol_data(path).is_some(),
            (Self::KubeletPods, true) | (Self::KubeletDevices, false) => false,
        }
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
pub fn parts(path: &RelativePath) -> [&str; 5] {
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
        }
    }
}
