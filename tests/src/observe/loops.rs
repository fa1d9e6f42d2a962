//! Loop devices, as losetup(8) lists them.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

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
    let output = Command::new("losetup")
        .args(["--list", "--json", "--output", "NAME,BACK-FILE,BACK-MAJ:MIN,BACK-INO,RO,AUTOCLEAR,DIO,LOG-SEC"])
        .output()
        .context("run losetup")?;
    ensure!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
    if output.stdout.is_empty() {
        return Ok(Vec::new());
    }
    let listing: Value = serde_json::from_slice(&output.stdout).context("losetup's listing")?;
    let devices = listing["loopdevices"].as_array().context("losetup lists no devices")?;
    Ok(devices.iter().map(parse).collect())
}

/// Loop devices whose backing file is on the filesystem with this `major:minor`.
pub fn backed_by(device: &str) -> Result<Vec<Loop>> {
    Ok(all()?.into_iter().filter(|found| found.backing_device == device).collect())
}

/// Detaches a loop device.
pub fn detach(device: &Loop) -> Result<()> {
    let status = Command::new("losetup").arg("--detach").arg(&device.path).status()?;
    ensure!(status.success(), "losetup cannot detach {}", device.path.display());
    Ok(())
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
