//! What is below a pool's filesystem, as sysfs tells it: encryption, RAID, LVM, a file. It is for the administrator to
//! judge, so a device that cannot be looked at is left out.

use std::collections::BTreeSet;
use std::path::Path;

/// How deep devices are followed. Nobody stacks more.
const DEEPEST: usize = 8;

/// Returns what the device `(major, minor)` is made of, outermost first, such as `encryption (LUKS2)`, `RAID (raid1)`.
/// Nothing for a plain disk or partition. `sysfs` is where that is mounted.
pub fn layers(sysfs: &Path, (major, minor): (u32, u32)) -> Vec<String> {
    let mut found = Vec::new();
    let mut level = BTreeSet::from([format!("{major}:{minor}")]);
    for _ in 0..DEEPEST {
        let mut next = BTreeSet::new();
        for device in &level {
            let device = sysfs.join("dev/block").join(device);
            if let Some(layer) = layer(&device).filter(|layer| !found.contains(layer)) {
                found.push(layer);
            }
            next.extend(below(&device));
        }
        level = next;
    }
    found
}

/// Returns what a device adds to those below it.
#[expect(clippy::disallowed_methods, reason = "sysfs is the kernel's, and is read by path")]
fn layer(device: &Path) -> Option<String> {
    let read = |name: &str| std::fs::read_to_string(device.join(name)).ok().map(|text| text.trim().to_owned());
    if let Some(uuid) = read("dm/uuid") {
        // Their makers begin it with what they are.
        return match uuid.strip_prefix("CRYPT-") {
            Some(rest) => Some(format!("encryption ({})", rest.split('-').next().unwrap_or_default())),
            None if uuid.starts_with("LVM-") => Some("LVM".to_owned()),
            None => Some("another device mapper's target".to_owned()),
        };
    }
    if let Some(level) = read("md/level") {
        let degraded = read("md/degraded").is_some_and(|missing| missing != "0");
        return Some(format!("{}RAID ({level})", if degraded { "degraded " } else { "" }));
    }
    read("loop/backing_file").map(|file| format!("the file {file:?}"))
}

/// The devices that a device is made of, as sysfs numbers them; that of a partition is its disk.
#[expect(clippy::disallowed_methods, reason = "sysfs is the kernel's, and is read by path")]
fn below(device: &Path) -> Vec<String> {
    let number = |device: &Path| std::fs::read_to_string(device.join("dev")).ok().map(|text| text.trim().to_owned());
    let slaves = std::fs::read_dir(device.join("slaves")).into_iter().flatten().filter_map(Result::ok);
    let mut numbers: Vec<_> = slaves.filter_map(|slave| number(&slave.path())).collect();
    if device.join("partition").exists() {
        numbers.extend(std::fs::canonicalize(device).ok().and_then(|own| number(own.parent()?)));
    }
    numbers
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test's own files")]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A tree like that of sysfs, since not every kernel has the drivers.
    struct Sysfs(PathBuf);

    impl Sysfs {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("bulkhead-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("dev/block")).expect("a directory");
            Self(path)
        }

        fn device(&self, place: &str, number: &str, files: &[(&str, &str)], slaves: &[&str]) {
            let device = self.0.join("devices").join(place);
            for (name, content) in files.iter().chain(&[("dev", number)]) {
                let file = device.join(name);
                fs::create_dir_all(file.parent().expect("it has one")).expect("a directory");
                fs::write(file, format!("{content}\n")).expect("a file");
            }
            for slave in slaves {
                fs::create_dir_all(device.join("slaves")).expect("a directory");
                let name = Path::new(slave).file_name().expect("a name");
                symlink(self.0.join("devices").join(slave), device.join("slaves").join(name)).expect("a link");
            }
            symlink(&device, self.0.join("dev/block").join(number)).expect("a link");
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn layers_are_named_from_the_filesystem_down() {
        let sysfs = Sysfs::new("layers");
        sysfs.device("sda", "8:0", &[], &[]);
        sysfs.device("sda/sda1", "8:1", &[("partition", "1")], &[]);
        sysfs.device("sdb", "8:16", &[], &[]);
        let array = [("md/level", "raid1"), ("md/degraded", "1")];
        sysfs.device("md0", "9:0", &array, &["sda/sda1", "sdb"]);
        sysfs.device("dm-0", "253:0", &[("dm/uuid", "CRYPT-LUKS2-0123-pool")], &["md0"]);
        sysfs.device("dm-1", "253:1", &[("dm/uuid", "LVM-abc")], &["dm-0"]);
        assert_eq!(layers(&sysfs.0, (253, 1)), ["LVM", "encryption (LUKS2)", "degraded RAID (raid1)"]);
        for plain in [(8, 0), (8, 1), (8, 16), (77, 7)] {
            assert_eq!(layers(&sysfs.0, plain), [""; 0], "{plain:?}");
        }
    }

    #[test]
    fn a_partition_of_an_array_and_a_file_are_seen_and_a_circle_ends() {
        let sysfs = Sysfs::new("odd");
        sysfs.device("md0", "9:0", &[("md/level", "raid5"), ("md/degraded", "0")], &[]);
        sysfs.device("md0/md0p1", "259:1", &[("partition", "1")], &[]);
        assert_eq!(layers(&sysfs.0, (259, 1)), ["RAID (raid5)"]);
        sysfs.device("loop0", "7:0", &[("loop/backing_file", "/var/lib/pool.img\n")], &[]);
        assert_eq!(layers(&sysfs.0, (7, 0)), ["the file \"/var/lib/pool.img\""]);
        sysfs.device("dm-2", "253:2", &[("dm/uuid", "other")], &["dm-2"]);
        assert_eq!(layers(&sysfs.0, (253, 2)), ["another device mapper's target"]);
    }
}
