//! The machine's disks: sparse files, formatted on the host without any privilege, which outlive a reboot and a power
//! cut of the machine.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process::{command, run_quietly};

/// One disk: the machine finds it by its serial number and mounts it.
pub struct Disk {
    /// Serial number, and the image's name.
    pub name: &'static str,
    /// Filesystem type.
    pub filesystem: &'static str,
    /// Mount options.
    pub options: &'static str,
    /// Where the machine mounts it.
    pub directory: &'static str,
}

/// The pools and the node's own state, as every machine has them.
pub const DISKS: [Disk; 3] = [
    Disk { name: "xfs", filesystem: "xfs", options: "prjquota", directory: "/pools/xfs" },
    Disk { name: "ext4", filesystem: "ext4", options: "prjquota", directory: "/pools/ext4" },
    Disk { name: "state", filesystem: "ext4", options: "defaults", directory: "/var/lib" },
];

impl Disk {
    /// The disk's image in a machine's run directory.
    pub fn image(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}.disk", self.name))
    }

    /// Makes the image and its filesystem.
    pub fn make(&self, directory: &Path, mebibytes: u64) -> Result<()> {
        let image = self.image(directory);
        File::create_new(&image)?.set_len(mebibytes << 20)?;
        let mut mkfs = match self.filesystem {
            "xfs" => command("mkfs.xfs"),
            _ => command("mkfs.ext4"),
        };
        match self.name {
            "xfs" => mkfs.arg("-q"),
            "ext4" => mkfs.args(["-q", "-O", "quota,project", "-E", "quotatype=prjquota"]),
            _ => mkfs.arg("-q"),
        };
        run_quietly(mkfs.arg(&image))
    }
}

/// The table of disks as the guest reads it.
pub fn table() -> String {
    DISKS
        .iter()
        .map(|disk| format!("{} {} {} {}\n", disk.name, disk.filesystem, disk.options, disk.directory))
        .collect()
}
