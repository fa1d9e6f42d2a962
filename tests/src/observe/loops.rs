//! Loop devices, as losetup(8) lists them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::pool::{output, run};

/// A loop device that is bound to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// `/dev/loopN`.
    pub path: PathBuf,
    /// The backing file, under the name it had when the device was set up.
    pub backing_file: String,
    /// `major:minor` of the filesystem that contains the backing file.
    pub backing_device: String,
    /// Inode of the backing file.
    pub backing_inode: u64,
    /// Refuses writes.
    pub read_only: bool,
    /// Is released when its last user closes it.
    pub autoclear: bool,
    /// Bypasses the page cache.
    pub direct: bool,
    /// Logical block size.
    pub block_size: u64,
}

impl Loop {
    /// `N` of `/dev/loopN`.
    pub fn number(&self) -> Option<u32> {
        self.path.to_str()?.strip_prefix("/dev/loop")?.parse().ok()
    }

    /// The device's size in bytes, according to the kernel.
    pub fn size(&self) -> Result<u64> {
        let name = self.path.file_name().and_then(|name| name.to_str()).context("loop device without a name")?;
        let sectors = std::fs::read_to_string(format!("/sys/block/{name}/size"))?;
        Ok(sectors.trim().parse::<u64>()? * 512)
    }
}

/// All loop devices that are bound to a file.
pub fn all() -> Result<Vec<Loop>> {
    let columns = "NAME,BACK-FILE,BACK-MAJ:MIN,BACK-INO,RO,AUTOCLEAR,DIO,LOG-SEC";
    let listing = output(Command::new("losetup").args(["--list", "--json", "--output", columns]))?;
    if listing.is_empty() {
        return Ok(Vec::new());
    }
    let listing: Value = serde_json::from_str(&listing).context("losetup's listing")?;
    let devices = listing["loopdevices"].as_array().context("losetup lists no devices")?;
    Ok(devices.iter().map(parse).collect())
}

/// Loop devices whose backing file is on the filesystem with this `major:minor`.
pub fn backed_by(device: &str) -> Result<Vec<Loop>> {
    Ok(all()?.into_iter().filter(|found| found.backing_device == device).collect())
}

/// The numbers that helpers use.
const OF_HELPERS: Range<u32> = 0x8_0000..0x10_0000;

/// How many numbers a helper uses up in one test, at most.
const OF_ONE_HELPER: u32 = 1 << 14;

/// The numbers of all loop devices, bound or not, that were made since this one by its helper or by the next one on the same
/// pool. The helpers of each pool count on from a random number, far from those of any other.
pub fn made_since(first: u32) -> Result<BTreeSet<u32>> {
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir("/sys/block").context("list all block devices")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse::<u32>().ok());
        numbers.extend(number.filter(|number| (first..first.saturating_add(OF_ONE_HELPER)).contains(number)));
    }
    Ok(numbers)
}

/// Makes as many devices with low numbers as tests attach by hand or mount, all together. Once those are used up, the kernel
/// hands out any device that is not bound, and takes it away from a helper that keeps it ready.
pub fn provide() -> Result<()> {
    let script = "open(my $control, '+<', '/dev/loop-control') or die $!; ioctl($control, 0x4c80, $_) for 0 .. 63";
    run(Command::new("perl").args(["-e", script]))
}

/// Attaches a file to a device of a number that helpers use, with the label of a volume's, and returns its path.
pub fn attach_as_helpers_do(file: &Path, label: &str) -> Result<PathBuf> {
    // LOOP_CTL_ADD, LOOP_SET_FD and LOOP_SET_STATUS64 with a loop_info64 (loop(4)) in which only the name is given.
    let script = "my ($number, $file, $label) = @ARGV; my ($control, $device, $backing); \
        open($control, '+<', '/dev/loop-control') && ioctl($control, 0x4c80, $number + 0) \
        && open($device, '+<', \"/dev/loop$number\") && open($backing, '+<', $file) \
        && ioctl($device, 0x4c00, fileno($backing)) && ioctl($device, 0x4c04, pack('x56 a64 x112', $label)) or die $!";
    let is_free = |number: &u32| !Path::new("/sys/block").join(format!("loop{number}")).exists();
    let number = (OF_HELPERS.start..OF_HELPERS.end).find(is_free).context("helpers have taken all their numbers")?;
    run(Command::new("perl").args(["-e", script, &number.to_string()]).arg(file).arg(label))?;
    Ok(format!("/dev/loop{number}").into())
}

/// Detaches devices and removes them.
pub fn remove(devices: &[PathBuf]) -> Result<()> {
    run(Command::new("losetup").arg("--detach").args(devices))?;
    let script = "open(my $control, '+<', '/dev/loop-control') or die $!; /(\\d+)$/ && ioctl($control, 0x4c81, $1 + 0) for @ARGV";
    run(Command::new("perl").args(["-e", script]).args(devices))
}

/// Attaches a file to a device that is free, and returns the device's path.
pub fn attach(file: &Path) -> Result<PathBuf> {
    Ok(output(Command::new("losetup").args(["--find", "--show"]).arg(file))?.into())
}

/// Detaches a loop device.
pub fn detach(device: &Path) -> Result<()> {
    run(Command::new("losetup").arg("--detach").arg(device))
}

/// Detaches a volume's device as an administrator can: first the device on top of it, which keeps it open.
pub fn detach_by_hand(device: &Loop) -> Result<()> {
    let on_top = format!("/loop{}", device.number().context("a loop device without a number")?);
    for hold in all()?.into_iter().filter(|found| found.backing_file.ends_with(&on_top)) {
        detach(&hold.path)?;
    }
    detach(&device.path)
}

fn parse(device: &Value) -> Loop {
    let text = |key: &str| match &device[key] {
        Value::String(text) => text.trim().to_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let flag = |key: &str| matches!(text(key).as_str(), "1" | "true");
    Loop {
        path: PathBuf::from(text("name")),
        backing_file: text("back-file"),
        backing_device: text("back-maj:min"),
        backing_inode: text("back-ino").parse().unwrap_or_default(),
        read_only: flag("ro"),
        autoclear: flag("autoclear"),
        direct: flag("dio"),
        block_size: text("log-sec").parse().unwrap_or_default(),
    }
}
