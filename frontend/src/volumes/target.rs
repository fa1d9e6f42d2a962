//! Resolves a path on the host to a target below a publish directory.

use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{PublishDirectory, RelativePath, TargetPath};

/// The target that `path` names, below the nearest publish directory.
///
/// The path is normalized as text, never looked up. Empty components and `.` are ignored; `..` is refused, because its
/// meaning depends on symbolic links.
///
/// # Errors
/// When the path is invalid, or not below a publish directory; the message lists the publish directories.
pub fn resolve(path: &str, directories: &[PublishDirectory]) -> Result<TargetPath, Fault> {
    let path = components(path)?;
    let nearest = directories
        .iter()
        .filter_map(|directory| {
            let base = components(directory.host_path.as_str()).ok()?;
            // The directory itself is not a target.
            let below = path.strip_prefix(base.as_slice()).filter(|below| !below.is_empty())?;
            Some((directory, below))
        })
        .min_by_key(|(_, below)| below.len());
    let Some((directory, below)) = nearest else {
        let known: Vec<_> = directories.iter().map(|directory| directory.host_path.as_str()).collect();
        let known = if known.is_empty() { "none are configured".to_owned() } else { known.join(", ") };
        return Err(Fault::invalid(format!("the path is not below a publish directory ({known})")));
    };
    let below = RelativePath::try_from(below.join("/")).map_err(|error| Fault::invalid(error.to_string()))?;
    Ok(TargetPath { directory: directory.name.clone(), path: below })
}

fn components(path: &str) -> Result<Vec<&str>, Fault> {
    let Some(path) = path.strip_prefix('/') else {
        return Err(Fault::invalid("the path is not absolute"));
    };
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") { Err(Fault::invalid("the path contains \"..\"")) } else { Ok(parts) }
}

#[cfg(test)]
#[path = "../../../tests/src/random.rs"]
mod random;

#[cfg(test)]
mod tests {
    use bulkhead_protocol::Text;

    use super::random::Random;
    use super::*;

    fn resolved(path: &str) -> Result<String, String> {
        let directory =
            |name: &str, path: &str| PublishDirectory { name: name.parse().unwrap(), host_path: Text::new(path) };
        let known = [
            directory("kubelet", "/var/lib/kubelet"),
            directory("csi", "/var/lib/kubelet/plugins/"),
            directory("other", "/srv//volumes"),
        ];
        resolve(path, &known).map(|target| target.to_string()).map_err(|fault| fault.to_string())
    }

    #[test]
    fn the_nearest_directory_counts() {
        assert_eq!(resolved("/var/lib/kubelet/pods/x/mount").unwrap(), "kubelet:pods/x/mount");
        assert_eq!(resolved("/var/lib/kubelet/plugins/x").unwrap(), "csi:x");
        assert_eq!(resolved("/srv/volumes/a").unwrap(), "other:a");
    }

    #[test]
    fn spelling_does_not_matter() {
        assert_eq!(resolved("//srv/./volumes//a/").unwrap(), "other:a");
    }

    #[test]
    fn paths_elsewhere_are_refused_with_the_list() {
        for path in ["/srv/volumes", "/srv/volumes/", "/srv/volumesx/a", "/etc/passwd", "/"] {
            assert!(resolved(path).unwrap_err().contains("/var/lib/kubelet, "), "{path}");
        }
    }

    #[test]
    fn doubtful_paths_are_refused() {
        for path in ["", "srv/volumes/a", "/srv/volumes/../../etc", "/srv/volumes/a\0b", "/srv/volumes/.."] {
            assert!(resolved(path).is_err(), "{path}");
        }
        assert!(resolved(&format!("/srv/volumes/{}", "x".repeat(256))).is_err());
        assert!(resolved(&format!("/srv/volumes/{}", "x/".repeat(4000))).is_err());
    }

    #[test]
    fn a_random_path_never_leaves_the_directory_that_it_names() {
        let base = "/srv/volumes";
        let directory = PublishDirectory { name: "other".parse().unwrap(), host_path: Text::new(base) };
        let seeds = [
            "/srv/volumes/a", "/srv/volumes/../b", "//srv/./volumes//a/", "/srv/volumes/pods/x/mount", "/srv/volumesx",
        ];
        let seeds = seeds.map(|path| path.as_bytes().to_vec());
        let mut random = Random::new(1);
        let mut resolved = 0;
        for _ in 0..50_000 {
            let path = String::from_utf8_lossy(&random.mutated(&seeds)).into_owned();
            let Ok(target) = resolve(&path, std::slice::from_ref(&directory)) else { continue };
            resolved += 1;
            let plain = |text: &str| {
                text.split('/').filter(|part| !part.is_empty() && *part != ".").collect::<Vec<_>>().join("/")
            };
            assert_eq!(plain(&format!("{base}/{}", target.path.as_str())), plain(&path), "{path:?}");
            let ordinary = target.path.components().all(|part| !part.is_empty() && part != "." && part != "..");
            assert!(ordinary && !path.contains('\0'), "{path:?}");
        }
        assert!(resolved > 5_000, "{resolved}");
    }

    #[test]
    fn long_paths_are_served() {
        let path = format!("/srv/volumes/{}", vec!["component"; 300].join("/"));
        assert!(path.len() > 3000 && resolved(&path).is_ok());
    }
}
