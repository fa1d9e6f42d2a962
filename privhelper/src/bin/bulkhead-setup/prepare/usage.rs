//! What devices are used for, as this machine's tables tell it: mounts, swap space, and which devices carry the system.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bulkhead_privhelper::mountinfo::{Mount, MountTable};
use bulkhead_privhelper::{SysError, file, walk};
use rustix::fs::OFlags;

use super::devices::Device;
use super::rule::number_of;

/// Where the system's own filesystems are.
const SYSTEM: [&str; 7] = ["/", "/boot", "/boot/efi", "/efi", "/etc", "/usr", "/var"];
/// More than the kernel's table of swap space takes.
const LONGEST: usize = 1 << 20;

/// What is in use.
#[derive(Debug, Default)]
pub struct Usage {
    /// Devices that are mounted, and where.
    pub mounted: Vec<((u32, u32), PathBuf)>,
    /// Nodes of `/dev` that are mounted elsewhere, by name: so containers get a disk as it is.
    pub bound: Vec<(String, PathBuf)>,
    /// Devices that the kernel swaps to.
    pub swap: BTreeSet<(u32, u32)>,
    /// Everything that is mounted on anything.
    pub points: BTreeSet<PathBuf>,
}

impl Usage {
    /// Looks at this namespace's mounts, and at those of the machine's first process, which may be others.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn now() -> Result<Self, SysError> {
        let mut usage = Self::default();
        usage.add(MountTable::open()?)?;
        if let Ok(first) = walk::open_at_start("/proc/1/mountinfo", OFlags::RDONLY) {
            usage.add(MountTable::of_file(first))?;
        }
        if let Ok(swaps) = walk::open_at_start("/proc/swaps", OFlags::RDONLY) {
            usage.swap = swaps_in(swaps)?;
        }
        Ok(usage)
    }

    fn add(&mut self, mut table: MountTable) -> Result<(), SysError> {
        table.each(|mount| {
            self.points.insert(mount.point.clone());
            if let Some(device) = device_of(mount) {
                self.mounted.push((device, mount.point.clone()));
            }
            if mount.filesystem == "devtmpfs" && mount.root != Path::new("/") {
                let name = mount.root.strip_prefix("/").unwrap_or(&mount.root);
                self.bound.push((name.to_string_lossy().into_owned(), mount.point.clone()));
            }
            ControlFlow::Continue(())
        })
    }

    /// Where a device is mounted.
    pub fn points_of(&self, device: (u32, u32)) -> impl Iterator<Item = &PathBuf> {
        self.mounted.iter().filter(move |(number, _)| *number == device).map(|(_, point)| point)
    }

    /// For each device that carries the system, by name: the mounts that are on it.
    pub fn of_system(&self, devices: &[Device]) -> Vec<(String, PathBuf)> {
        let mut carries = Vec::new();
        for (number, point) in &self.mounted {
            if !SYSTEM.iter().any(|own| point == Path::new(own)) {
                continue;
            }
            let first = devices.iter().find(|device| device.number == *number);
            let mut below: Vec<_> = first.map(|device| &device.name).into_iter().collect();
            while let Some(name) = below.pop() {
                let found = (name.clone(), point.clone());
                if !carries.contains(&found) {
                    carries.push(found);
                    below.extend(devices.iter().find(|device| device.name == *name).into_iter().flat_map(|d| &d.below));
                }
            }
        }
        carries
    }
}

/// The device of a mount. Filesystems of several devices have a number of their own, and name one of the devices.
fn device_of(mount: &Mount) -> Option<(u32, u32)> {
    if mount.device.0 != 0 {
        return Some(mount.device);
    }
    mount.source.starts_with("/dev").then(|| number_of(&mount.source))?
}

/// The devices in the kernel's table of swap space: a line for each, below one of headings.
fn swaps_in(table: OwnedFd) -> Result<BTreeSet<(u32, u32)>, SysError> {
    let text = file::read_up_to(table, LONGEST)?;
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().skip(1).filter_map(|line| number_of(Path::new(line.split_whitespace().next()?))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_the_root_carries_the_system_and_its_neighbour_does_not() {
        let device = |name: &str, minor, below: &[&str]| Device {
            name: name.to_owned(),
            number: (8, minor),
            below: below.iter().map(|&name| name.to_owned()).collect(),
            ..Device::default()
        };
        let devices =
            [device("sda", 0, &[]), device("sda1", 1, &["sda"]), device("dm-0", 9, &["sda1"]), device("sdb", 16, &[])];
        let mounted = vec![((8, 9), "/".into()), ((8, 16), "/data".into()), ((8, 9), "/var".into())];
        let usage = Usage { mounted, ..Usage::default() };
        let carries = usage.of_system(&devices);
        for name in ["dm-0", "sda1", "sda"] {
            for point in ["/", "/var"] {
                assert!(carries.contains(&(name.to_owned(), point.into())), "{name} {point}");
            }
        }
        assert_eq!(carries.len(), 6);
        assert_eq!(usage.points_of((8, 16)).collect::<Vec<_>>(), [Path::new("/data")]);
    }
}
