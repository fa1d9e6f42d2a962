//! What keeps tenants apart and is not the helper's: the administrator is told where it is missing, and the helper serves all
//! the same.

use std::os::fd::OwnedFd;
use std::path::Path;

use bulkhead_privhelper::{file, layout};
use bulkhead_protocol::kernel::{SHARED_BLOCKS, changes_shared_blocks};
use bulkhead_protocol::{PoolName, VolumeId};

/// What a directory volume has, and no other.
const DATA: &str = "data";

/// Where udev looks for rules (udev(7)).
const RULES: [&str; 4] = ["etc/udev/rules.d", "run/udev/rules.d", "usr/local/lib/udev/rules.d", "usr/lib/udev/rules.d"];
/// What the rule in deploy/udev is known by, whatever file it was put into: the first numbers of the helpers' devices, and
/// what it says of them.
const OURS: [&str; 2] = ["loop5[2-9][0-9][0-9][0-9][0-9]", "UDEV_DISABLE_PERSISTENT_STORAGE_RULES_FLAG"];

/// Notes on the programs of the host that read devices. `root` is where its tree is.
pub fn of_host(root: &Path) -> Vec<&'static str> {
    let mut notes = Vec::new();
    // Without any, as in a container, nothing can be said of the host's.
    let rules: Vec<_> = RULES.iter().filter_map(|directory| rules_in(&root.join(directory))).collect();
    if !rules.is_empty() && !rules.iter().flatten().any(|text| has_line(text, &OURS)) {
        notes.push(
            "udev: it reads what pods write to block volumes; install deploy/udev/59-bulkhead.rules in /etc/udev/rules.d",
        );
    }
    let has_devices_file = read(&root.join("etc/lvm/devices/system.devices")).is_some();
    if !has_devices_file
        && read(&root.join("etc/lvm/lvm.conf")).is_some_and(|text| !has_line(&text, &["global_filter"]))
    {
        notes.push(
            "LVM: it reads what pods write to block volumes; set global_filter = [ \"r|^/dev/loop|\" ] in /etc/lvm/lvm.conf",
        );
    }
    notes
}

/// What is to be known of a pool.
pub struct Facts {
    /// Its name.
    pub name: PoolName,
    /// Its filesystem.
    pub device: (u32, u32),
    /// Whether its files can share blocks.
    pub shares_blocks: bool,
    /// Whether it may have filesystems in images.
    pub has_filesystems: bool,
    /// Whether there is a directory volume in it.
    pub has_directories: bool,
    /// Whether the sizes of directory volumes are limits.
    pub has_limits: bool,
}

/// Returns whether any of these volumes of a pool is a directory.
pub fn has_directories(pool: &OwnedFd, volumes: &[VolumeId]) -> bool {
    let data = |id: &VolumeId| layout::open_volume(pool, id.as_str()).and_then(|volume| file::status_at(volume, DATA));
    volumes.iter().any(|id| data(id).is_ok())
}

/// Notes on pools, each with the name of the pool: on a kernel of this release, and beside each other.
pub fn of_pools(release: &str, pools: &[Facts]) -> Vec<(PoolName, String)> {
    let mut notes = Vec::new();
    for Facts { name, device, shares_blocks, has_filesystems, has_limits, .. } in pools {
        if !has_limits {
            notes.push((name.clone(), "sizes are not enforced: with quota=none, a pod that has a directory volume can fill the pool for all others; mount it with project quotas, and remove quota=none".to_owned()));
        }
        if *shares_blocks && changes_shared_blocks(release) {
            notes.push((name.clone(), format!("on Linux {release}, {SHARED_BLOCKS}")));
        }
        if *has_filesystems && pools.iter().any(|other| other.device == *device && other.has_directories) {
            notes.push((name.clone(), "directory volumes are on the same filesystem as filesystems in images: a pod that has one of the former and CAP_DAC_READ_SEARCH can write to the latter; give each a filesystem of its own".to_owned()));
        }
    }
    notes
}

/// The texts of the rules in a directory, if it is there.
#[expect(clippy::disallowed_methods, reason = "the administrator's own files, which nothing else rests on")]
fn rules_in(directory: &Path) -> Option<Vec<String>> {
    let entries = std::fs::read_dir(directory).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    Some(
        entries
            .filter(|path| path.extension().is_some_and(|end| end == "rules"))
            .filter_map(|path| read(&path))
            .collect(),
    )
}

#[expect(clippy::disallowed_methods, reason = "the administrator's own files, which nothing else rests on")]
fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Returns whether a line that is no comment has all these parts.
fn has_line(text: &str, parts: &[&str]) -> bool {
    let lines = text.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
    lines.into_iter().any(|line| parts.iter().all(|part| line.contains(part)))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test's own files")]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    /// A tree of a host, with these files.
    struct Host(PathBuf);

    impl Host {
        fn with(name: &str, files: &[(&str, &str)]) -> Self {
            let host = Self(std::env::temp_dir().join(format!("bulkhead-walls-{name}-{}", std::process::id())));
            for (path, text) in files {
                let path = host.0.join(path);
                fs::create_dir_all(path.parent().expect("it has one")).expect("a directory");
                fs::write(path, text).expect("a file");
            }
            host
        }

        /// The first words of the notes.
        fn notes(&self) -> Vec<&str> {
            of_host(&self.0).into_iter().filter_map(|note| note.split(':').next()).collect()
        }
    }

    impl Drop for Host {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_host_whose_programs_read_devices_is_told_and_a_container_is_not() {
        let rule = include_str!("../../../../deploy/udev/59-bulkhead.rules");
        let commented: String = rule.lines().map(|line| format!("# {line}\n")).collect();
        let own = ("usr/lib/udev/rules.d/60-block.rules", "SUBSYSTEM==\"block\"\n");
        assert_eq!(Host::with("container", &[]).notes(), [""; 0]);
        assert_eq!(Host::with("none", &[own]).notes(), ["udev"]);
        assert_eq!(Host::with("comment", &[own, ("etc/udev/rules.d/59-bulkhead.rules", &commented)]).notes(), ["udev"]);
        assert_eq!(Host::with("other", &[own, ("etc/udev/rules.d/59-bulkhead.rules.off", rule)]).notes(), ["udev"]);
        for place in ["etc/udev/rules.d/59-bulkhead.rules", "run/udev/rules.d/99-talos.rules"] {
            assert_eq!(Host::with("rule", &[own, (place, rule)]).notes(), [""; 0], "{place}");
        }
        let lvm = |text| ("etc/lvm/lvm.conf", text);
        assert_eq!(Host::with("lvm", &[lvm("devices {\n\t# global_filter = [ \"a|.*|\" ]\n}\n")]).notes(), ["LVM"]);
        assert_eq!(Host::with("filter", &[lvm("\tglobal_filter = [ \"r|^/dev/loop|\" ]\n")]).notes(), [""; 0]);
        assert_eq!(Host::with("file", &[lvm(""), ("etc/lvm/devices/system.devices", "")]).notes(), [""; 0]);
    }

    #[test]
    fn a_pool_is_told_of_a_kernel_and_of_a_neighbour_that_concern_it() {
        let pool = |name: &str, device, shares_blocks, has_filesystems, has_directories| Facts {
            name: name.parse().expect("a name"),
            device: (8, device),
            shares_blocks,
            has_filesystems,
            has_directories,
            has_limits: true,
        };
        let told = |release: &str, pools: &[Facts]| {
            let notes = of_pools(release, pools).into_iter();
            notes.map(|(name, note)| (name.to_string(), note.contains("CVE-2026-80530"))).collect::<Vec<_>>()
        };
        let told_one = |of_kernel| ("one".to_owned(), of_kernel);
        let alone = |shares, filesystems, directories| [pool("one", 1, shares, filesystems, directories)];
        assert_eq!(told("6.18.44", &alone(true, false, true)), [told_one(true)]);
        assert_eq!(told("6.18.46", &alone(true, false, true)), []);
        assert_eq!(told("6.18.44", &alone(false, false, true)), []);
        assert_eq!(told("6.18.44", &alone(true, true, true)), [told_one(true), told_one(false)]);
        assert_eq!(told("6.18.46", &alone(true, true, false)), []);
        let two = |device| [pool("one", 1, true, true, false), pool("two", device, true, false, true)];
        assert_eq!(told("6.18.46", &two(1)), [told_one(false)]);
        assert_eq!(told("6.18.46", &two(2)), []);
        let without_limits = [Facts { has_limits: false, ..pool("one", 1, false, false, false) }];
        assert!(of_pools("6.18.46", &without_limits)[0].1.contains("quota=none"));
    }
}
