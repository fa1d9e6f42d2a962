//! The block devices of this machine, as sysfs shows them.

use std::path::{Path, PathBuf};

/// A block device: a disk, a partition, or what is made of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The kernel's name for it.
    pub name: String,
    /// Major and minor.
    pub number: (u32, u32),
    /// Its type, as lsblk(8) calls it, except that what is no hardware is no `disk`.
    pub kind: String,
    /// Bytes.
    pub size: u64,
    /// Whether it cannot be written.
    pub read_only: bool,
    /// Whether its medium can be taken out.
    pub removable: bool,
    /// What it calls itself.
    pub model: String,
    /// Its serial number.
    pub serial: String,
    /// Its world-wide name.
    pub wwn: String,
    /// Its node, which is the first, and the links to that.
    pub paths: Vec<PathBuf>,
    /// Names of its partitions.
    pub partitions: Vec<String>,
    /// Names of devices that are made of it.
    pub above: Vec<String>,
    /// Names of devices that it is made of; of a partition, its disk.
    pub below: Vec<String>,
    /// For a loop device: what is behind it.
    pub backing: Option<PathBuf>,
    /// The kernel's number for this very disk: no other gets it before the next boot.
    pub sequence: Option<String>,
}

/// What drivers that have no disk of their own call their devices, and what those are.
const OTHERS: [(&str, &str); 9] = [
    ("loop", "loop"),
    ("zram", "zram"),
    ("ram", "ram"),
    ("nbd", "nbd"),
    ("rbd", "rbd"),
    ("drbd", "drbd"),
    ("zd", "zvol"),
    ("sr", "rom"),
    ("fd", "floppy"),
];

impl Device {
    /// Its node.
    pub fn path(&self) -> PathBuf {
        Path::new("/dev").join(self.name.replace('!', "/"))
    }

    /// Reads what sysfs says of the device with this name.
    pub fn read(sysfs: &Path, name: &str) -> Option<Self> {
        let place = sysfs.join("class/block").join(name);
        let text = |file: &str| read(&place.join(file));
        let (major, minor) =
            text("dev")?.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))?;
        let is_set = |file: &str| text(file).is_some_and(|value| value != "0");
        let first = |files: &[&str]| files.iter().find_map(|file| text(file)).unwrap_or_default();
        let is_partition = text("partition").is_some();
        let mut below = names(&place.join("slaves"));
        let disk = if is_partition { disk_of(&place) } else { None };
        below.extend(disk.clone());
        let mut device = Self {
            name: name.to_owned(),
            number: (major, minor),
            kind: kind(name, &text),
            size: text("size")?.parse::<u64>().ok()?.saturating_mul(512),
            read_only: is_set("ro"),
            removable: is_set("removable")
                || disk.is_some_and(|disk| {
                    read(&sysfs.join("class/block").join(disk).join("removable")).as_deref() == Some("1")
                }),
            model: first(&["device/model"]),
            serial: first(&["device/serial", "serial"]),
            wwn: first(&["wwid", "device/wwid"]),
            partitions: names(&place)
                .into_iter()
                .filter(|entry| read(&place.join(entry).join("partition")).is_some())
                .collect(),
            above: names(&place.join("holders")),
            below,
            backing: text("loop/backing_file").map(PathBuf::from),
            sequence: text("diskseq"),
            paths: Vec::new(),
        };
        device.paths.push(device.path());
        if let Some(name) = text("dm/name") {
            device.paths.push(Path::new("/dev/mapper").join(name));
        }
        Some(device)
    }

    /// Whether this is the same device, and nothing has become of it but that it is looked at by another way.
    pub fn is(&self, other: &Self) -> bool {
        let without_links = |device: &Self| Self { paths: Vec::new(), ..device.clone() };
        without_links(self) == without_links(other)
    }

    /// Whether it is a number that is kept for a device, and none yet.
    fn is_unused(&self) -> bool {
        self.size == 0 && self.backing.is_none() && ["loop", "zram", "ram", "nbd"].contains(&self.kind.as_str())
    }
}

/// All devices that are in use as such, in the order of their names. `links` is where udev makes directories of links.
pub fn all(sysfs: &Path, links: &Path) -> Vec<Device> {
    let mut devices: Vec<_> = names(&sysfs.join("class/block"))
        .into_iter()
        // A path of a disk that has several, which has no node.
        .filter(|name| read(&sysfs.join("class/block").join(name).join("hidden")).is_none_or(|hidden| hidden == "0"))
        .filter_map(|name| Device::read(sysfs, &name))
        .filter(|device| !device.is_unused())
        .collect();
    devices.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
    for directory in names(links) {
        let directory = links.join(directory);
        for link in names(&directory) {
            let link = directory.join(link);
            let target = target(&link);
            if let Some(device) = devices.iter_mut().find(|device| target.as_ref() == Some(&device.name)) {
                device.paths.push(link);
            }
        }
    }
    devices
}

/// What a device is.
fn kind(name: &str, text: &impl Fn(&str) -> Option<String>) -> String {
    if text("partition").is_some() {
        return "part".to_owned();
    }
    if let Some(uuid) = text("dm/uuid") {
        // Their makers begin it with what they are; of a partition that includes its number.
        let maker = uuid.split_once('-').map_or("dm", |(maker, _)| maker).to_lowercase();
        return if maker.starts_with("part") { "part".to_owned() } else { maker };
    }
    if text("dm/name").is_some() {
        return "dm".to_owned();
    }
    if let Some(level) = text("md/level") {
        return level;
    }
    if name.starts_with("md") {
        return "md".to_owned();
    }
    if text("device/type").as_deref() == Some("5") {
        return "rom".to_owned();
    }
    let numbered = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
    };
    OTHERS.iter().find(|(prefix, _)| numbered(prefix)).map_or("disk", |(_, kind)| kind).to_owned()
}

#[expect(clippy::disallowed_methods, reason = "sysfs is the kernel's, and is read by path")]
fn read(file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The names in a directory, if it is there.
#[expect(clippy::disallowed_methods, reason = "sysfs and /dev/disk are the kernel's and udev's, and are read by path")]
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// The disk of a partition, which is the directory around it.
#[expect(clippy::disallowed_methods, reason = "sysfs is the kernel's, and is read by path")]
fn disk_of(partition: &Path) -> Option<String> {
    Some(std::fs::canonicalize(partition).ok()?.parent()?.file_name()?.to_string_lossy().into_owned())
}

/// What a link of udev's leads to.
#[expect(
    clippy::disallowed_methods,
    reason = "only to be compared with names of devices, which are looked at by themselves"
)]
fn target(link: &Path) -> Option<String> {
    Some(std::fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "the test's own files")]
pub mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A tree like that of sysfs, since no machine has all devices.
    pub struct Sysfs(pub PathBuf);

    impl Sysfs {
        pub fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("bulkhead-prepare-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("class/block")).expect("a directory");
            Self(path)
        }

        /// Makes a device of 8 GiB; `place` is its directory below those of the disks.
        pub fn device(&self, place: &str, number: &str, files: &[(&str, &str)]) {
            let device = self.0.join("devices").join(place);
            for (name, content) in [("dev", number), ("size", "16777216")].iter().chain(files) {
                let file = device.join(name);
                fs::create_dir_all(file.parent().expect("it has one")).expect("a directory");
                fs::write(file, format!("{content}\n")).expect("a file");
            }
            let name = device.file_name().expect("a name").to_owned();
            symlink(&device, self.0.join("class/block").join(name)).expect("a link");
        }
    }

    impl Drop for Sysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn each_device_has_its_type_and_what_it_is_made_of() {
        let sysfs = Sysfs::new("types");
        sysfs.device(
            "sda",
            "8:0",
            &[("device/model", "Fast 1 "), ("device/type", "0"), ("serial", "S1"), ("diskseq", "7")],
        );
        sysfs.device("sda/sda1", "8:1", &[("partition", "1"), ("holders/dm-0/x", "")]);
        sysfs.device("sr0", "11:0", &[("device/type", "5"), ("removable", "1")]);
        sysfs.device("dm-0", "253:0", &[("dm/uuid", "LVM-abc"), ("dm/name", "vg-lv"), ("slaves/sda1/x", "")]);
        sysfs.device("dm-1", "253:1", &[("dm/uuid", "part2-mpath-3600"), ("dm/name", "mpatha2")]);
        sysfs.device("dm-2", "253:2", &[("dm/name", "plain"), ("ro", "1")]);
        sysfs.device("md0", "9:0", &[("md/level", "raid1")]);
        sysfs.device("loop0", "7:0", &[("size", "0")]);
        sysfs.device("loop1", "7:1", &[("size", "0"), ("loop/backing_file", "/empty")]);
        sysfs.device("zram0", "254:0", &[]);
        sysfs.device("nvme0c0n1", "259:3", &[("hidden", "1")]);
        fs::create_dir_all(sysfs.0.join("links/by-id")).expect("a directory");
        symlink("../../sda", sysfs.0.join("links/by-id/ata-Fast")).expect("a link");
        let all = all(&sysfs.0, &sysfs.0.join("links"));
        let found: Vec<_> = all.iter().map(|device| (device.name.as_str(), device.kind.as_str())).collect();
        let expected = [
            ("md0", "raid1"),
            ("sda", "disk"),
            ("sr0", "rom"),
            ("dm-0", "lvm"),
            ("dm-1", "part"),
            ("dm-2", "dm"),
            ("sda1", "part"),
            ("loop1", "loop"),
            ("zram0", "zram"),
        ];
        assert_eq!(found, expected);
        let named = |name: &str| all.iter().find(|device| device.name == name).expect("it is listed");
        let disk = named("sda");
        assert_eq!((disk.model.as_str(), disk.serial.as_str(), disk.size), ("Fast 1", "S1", 8 << 30));
        assert_eq!(disk.partitions, ["sda1"]);
        assert_eq!(disk.paths, [PathBuf::from("/dev/sda"), sysfs.0.join("links/by-id/ata-Fast")]);
        assert_eq!(
            (&named("sda1").below[..], &named("sda1").above[..]),
            (&["sda".to_owned()][..], &["dm-0".to_owned()][..])
        );
        assert_eq!(named("dm-0").below, ["sda1"]);
        assert_eq!(named("dm-0").paths, [Path::new("/dev/dm-0"), Path::new("/dev/mapper/vg-lv")]);
        assert!(named("dm-2").read_only && named("sr0").removable);
    }

    #[test]
    fn another_disk_with_the_same_name_is_another() {
        let sysfs = Sysfs::new("swapped");
        sysfs.device("sdb", "8:16", &[("diskseq", "3")]);
        let before = Device::read(&sysfs.0, "sdb").expect("a disk");
        assert_eq!(Device::read(&sysfs.0, "sdb").as_ref(), Some(&before));
        fs::write(sysfs.0.join("devices/sdb/diskseq"), "4\n").expect("a file");
        assert_ne!(Device::read(&sysfs.0, "sdb"), Some(before));
        assert_eq!(Device::read(&sysfs.0, "sdc"), None);
    }
}
