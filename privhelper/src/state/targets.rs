//! Publish directories, as the keeper knows them: it sees none of them.

use std::path::{Path, PathBuf};

use bulkhead_protocol::{PublishName, Text};

use super::Kind;
use crate::place::Shape;

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
    /// Returns whether a path of the host is one at which a directory volume may be published.
    pub fn has_target_at(&self, point: &Path) -> bool {
        let below = point.strip_prefix(&self.real_path).ok().and_then(Path::to_str);
        let path = below.and_then(|path| path.parse().ok());
        path.is_some_and(|path| self.shape.allows(&path, Kind::Directory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_host_is_a_target_if_its_shape_is_one_below_the_real_directory() {
        let pods = PublishDirectory {
            name: "pods".parse().expect("a name"),
            host_path: Text::new("/k/pods"),
            real_path: "/data/pods".into(),
            shape: Shape::KubeletPods,
        };
        assert!(pods.has_target_at(Path::new("/data/pods/u/volumes/kubernetes.io~csi/pv/mount")));
        for other in ["/data/pods", "/data/pods/u", "/k/pods/u/volumes/kubernetes.io~csi/pv/mount", "/"] {
            assert!(!pods.has_target_at(Path::new(other)), "{other}");
        }
    }
}
