//! The machine's disks: sparse files, formatted on the host without any privileges, which outlive a reboot and a power
//! cut of the machine.

use std::path::{Path, PathBuf};

use anyhow::Result;
use fs_err::File;

use crate::process::{command, run_quietly};

/// One disk. The machine finds it by its filesystem's label.
pub struct Disk {
    /// The label of the filesystem, and the name of the image.
    pub label: &'static str,
    filesystem: &'static str,
    format: &'static [&'static str],
    mount: &'static str,
    /// Its size, in sizes of a pool's disk.
    pools: u64,
    /// Where the machine mounts it.
    directory: &'static str,
}

/// The pools.
pub const POOLS: [Disk; 2] = [
    Disk { label: "xfs", filesystem: "xfs", format: &[], mount: "prjquota", pools: 1, directory: "/pools/xfs" },
    Disk {
        label: "ext4",
        filesystem: "ext4",
        format: &["-O", "quota,project", "-E", "quotatype=prjquota"],
        mount: "prjquota",
        pools: 1,
        directory: "/pools/ext4",
    },
];

/// The pool of a Kubernetes node, where the manifests expect it.
pub const NODE_POOL: Disk = Disk { label: "pool", directory: "/srv/bulkhead/default", ..POOLS[0] };

/// What must persist in a machine whose root is in memory. Tests make pools in it and fill them to the last block: if the
/// disk were full first, the pool's own disk would fail.
pub const STATE: Disk =
    Disk { label: "state", filesystem: "ext4", format: &[], mount: "defaults", pools: 3, directory: "/var/lib" };

impl Disk {
    /// Makes the image and its filesystem in a machine's run directory; a pool's disk has so many mebibytes.
    pub fn make(&self, directory: &Path, mebibytes: u64) -> Result<PathBuf> {
        let image = directory.join(format!("{}.disk", self.label));
        File::create_new(&image)?.set_len((mebibytes * self.pools) << 20)?;
        let mut format = command(format!("mkfs.{}", self.filesystem));
        run_quietly(format.args(["-q", "-L", self.label]).args(self.format).arg(&image))?;
        Ok(image)
    }

    /// Its line in the machine's /etc/fstab.
    pub fn fstab(&self) -> String {
        let Disk { label, directory, filesystem, mount, .. } = self;
        format!("LABEL={label} {directory} {filesystem} {mount} 0 0\n")
    }
}
