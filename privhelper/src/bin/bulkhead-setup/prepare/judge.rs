//! Whether a device is to become a pool: cheap questions first, and what is on it last.

use rustix::fs::OFlags;

use super::content;
use super::devices::Device;
use super::rule::Rule;
use super::usage::Usage;
use super::why::{LEAST_BYTES, Why};

/// Returns why a device is not to be taken, without opening it.
pub fn at_a_glance(device: &Device, rule: &Rule, usage: &Usage, devices: &[Device]) -> Option<Why> {
    let names = |found: &[String]| (!found.is_empty()).then(|| found.to_vec());
    let system: Vec<_> = usage.of_system(devices).into_iter().filter(|(name, _)| *name == device.name).collect();
    if !system.is_empty() {
        return Some(Why::System(system.into_iter().map(|(_, point)| point).collect()));
    }
    if !rule.takes_type(&device.kind) {
        return Some(Why::Type(device.kind.clone()));
    }
    if device.size == 0 {
        return Some(Why::NoSize);
    }
    if let Some(point) = usage.points_of(device.number).next() {
        return Some(Why::Mounted(point.clone()));
    }
    if usage.swap.contains(&device.number) {
        return Some(Why::Swap);
    }
    if let Some(partitions) = names(&device.partitions) {
        return Some(Why::Partitions(partitions));
    }
    if let Some(above) = names(&device.above).or_else(|| names(&loops_on(device, devices))) {
        return Some(Why::Held(above));
    }
    if let Some((_, point)) = usage.bound.iter().find(|(name, _)| *name == device.name) {
        return Some(Why::Bound(point.clone()));
    }
    match device {
        Device { read_only: true, .. } => Some(Why::ReadOnly),
        Device { removable: true, .. } => Some(Why::Removable),
        Device { size, .. } if *size < LEAST_BYTES => Some(Why::TooSmall),
        _ => rule.mismatch(device),
    }
}

/// Returns why a device is not to be taken, once nothing else speaks against it.
pub fn closely(device: &Device) -> Result<(), Why> {
    let opened = content::open_alone(&device.path(), OFlags::RDONLY)?;
    content::is_empty(&device.path(), &opened)
}

/// Loop devices whose file is the node of this one, as the kubelet makes them; sysfs does not count them among holders.
fn loops_on(device: &Device, devices: &[Device]) -> Vec<String> {
    let leads_here = |other: &&Device| {
        let backing = other.backing.as_ref();
        backing.is_some_and(|backing| super::rule::number_of(backing) == Some(device.number))
    };
    devices.iter().filter(leads_here).map(|other| other.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn each_use_of_a_disk_speaks_against_it() {
        let disk = |name: &str| Device {
            name: name.to_owned(),
            number: (8, 16),
            kind: "disk".to_owned(),
            size: 1 << 40,
            ..Device::default()
        };
        let said = |device: Device, usage: Usage| {
            let rule = Rule { sizes: Some((1 << 30, 1 << 50)), ..Rule::default() };
            at_a_glance(&device, &rule, &usage, std::slice::from_ref(&device))
                .map(|why| why.to_string())
                .unwrap_or_default()
        };
        let mounted = |point: &str| Usage { mounted: vec![((8, 16), point.into())], ..Usage::default() };
        let bound = vec![("sdb".to_owned(), PathBuf::from("/var/lib/kubelet/x"))];
        assert_eq!(said(disk("sdb"), Usage::default()), "");
        for (device, usage, part) in [
            (disk("sdb"), mounted("/boot"), "the system is on it (/boot)"),
            (disk("sdb"), mounted("/data\n"), "is mounted on /data\\n"),
            (disk("sdb"), Usage { swap: [(8, 16)].into(), ..Usage::default() }, "is swap space"),
            (disk("sdb"), Usage { bound, ..Usage::default() }, "its node is mounted on /var/lib/kubelet/x"),
            (Device { partitions: vec!["sdb1".to_owned()], ..disk("sdb") }, Usage::default(), "has partitions (sdb1)"),
            (Device { above: vec!["dm-0".to_owned()], ..disk("sdb") }, Usage::default(), "are on it (dm-0)"),
            (Device { read_only: true, ..disk("sdb") }, Usage::default(), "is read-only"),
            (Device { removable: true, ..disk("sdb") }, Usage::default(), "is removable"),
            (Device { size: 0, ..disk("sdb") }, Usage::default(), "a size of 0"),
            (Device { size: (300 << 20) - 1, ..disk("sdb") }, Usage::default(), "is smaller than 300 MiB"),
            (Device { size: 1 << 51, ..disk("sdb") }, Usage::default(), "does not match --size"),
            (Device { kind: "rom".to_owned(), ..disk("sr0") }, Usage::default(), "is of type rom"),
        ] {
            let said = said(device, usage);
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}
