//! Software RAID of the node that lacks disks, as sysfs shows it to everybody. Neither the helper nor the frontend says
//! where a pool is, so which arrays have one is not known here.

use std::fs;
use std::path::Path;

use bulkhead_model::check::Check;
use bulkhead_model::quantity::count;

/// Where the kernel lists block devices; those of the host in a container too.
const DEVICES: &str = "/sys/block";

/// A note on each array that lacks disks.
pub fn checks() -> Vec<Check> {
    degraded(Path::new(DEVICES))
}

fn degraded(devices: &Path) -> Vec<Check> {
    let mut arrays: Vec<_> = fs::read_dir(devices).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    arrays.sort();
    arrays.iter().filter_map(|device| check(device)).collect()
}

fn check(device: &Path) -> Option<Check> {
    let read = |name: &str| fs::read_to_string(device.join("md").join(name)).ok().map(|text| text.trim().to_owned());
    let missing = read("degraded")?.parse::<u64>().ok().filter(|missing| *missing > 0)?;
    let (name, level) = (device.file_name()?.to_str()?, read("level")?);
    let message = format!(
        "{name} ({level}) lacks {}: see `mdadm --detail /dev/{name}`, and replace what is missing; `bulkhead-setup check` says whether a pool is on it",
        count(missing, "disk")
    );
    Some(Check::note("RAID", message))
}

#[cfg(test)]
mod tests {
    use bulkhead_model::check::Outcome;

    use super::*;

    #[test]
    fn an_array_that_lacks_a_disk_is_told_and_no_other_device_is() {
        let devices = tempfile::tempdir().unwrap();
        for (device, level, missing) in [("md0", "raid1", "0"), ("md127", "raid6", "2"), ("md3", "raid1", "1")] {
            let attributes = devices.path().join(device).join("md");
            fs::create_dir_all(&attributes).unwrap();
            fs::write(attributes.join("level"), format!("{level}\n")).unwrap();
            fs::write(attributes.join("degraded"), format!("{missing}\n")).unwrap();
        }
        // One that cannot lack any does not say how many, and a disk is no array.
        fs::create_dir_all(devices.path().join("md9/md")).unwrap();
        fs::write(devices.path().join("md9/md/level"), "raid0\n").unwrap();
        fs::create_dir_all(devices.path().join("sda")).unwrap();
        let told = degraded(devices.path());
        let beginnings = ["md127 (raid6) lacks 2 disks: see `mdadm --detail /dev/md127`", "md3 (raid1) lacks 1 disk: "];
        assert_eq!(told.len(), beginnings.len());
        for (check, beginning) in told.iter().zip(beginnings) {
            assert!(check.message.starts_with(beginning) && check.outcome == Outcome::Note, "{check:?}");
        }
        assert!(degraded(&devices.path().join("none")).is_empty());
    }
}
