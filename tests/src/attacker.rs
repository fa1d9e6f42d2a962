//! A process that has no capabilities but has access to a device, like root in a pod.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::VolumeSpec;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::helper;
use crate::pool::run;
use crate::rig::Rig;

/// How an attempt failed.
pub mod errno {
    /// EPERM.
    pub const PERM: i32 = 1;
    /// EACCES.
    pub const ACCESS: i32 = 13;
    /// EBUSY.
    pub const BUSY: i32 = 16;
    /// ENODEV.
    pub const NO_DEVICE: i32 = 19;
    /// EINVAL.
    pub const INVALID: i32 = 22;
}

/// What a process does to the device `$device`; `$ARGV[0]` is a file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// Unbinds it: LOOP_CLR_FD.
    Detach,
    /// Replaces its backing file with its own file: LOOP_CHANGE_FD.
    Exchange,
    /// Makes it unbind at its last close, makes its partitions appear, and moves its start by a sector:
    /// LOOP_SET_STATUS64 with LO_FLAGS_AUTOCLEAR and LO_FLAGS_PARTSCAN.
    Mark,
    /// Makes it writable: BLKROSET.
    AllowWrites,
    /// Writes to it.
    Write,
}

impl Attempt {
    fn script(self) -> &'static str {
        match self {
            Self::Detach => "done(ioctl($device, 0x4c01, 0))",
            Self::Exchange => "open(my $own, '+<', $ARGV[0]) or exit 99; done(ioctl($device, 0x4c06, fileno($own)))",
            Self::Mark => {
                "my $info = \"\\0\" x 232; ioctl($device, 0x4c05, $info) or exit 98;
                 substr($info, 52, 4) = pack('L', unpack('L', substr($info, 52, 4)) | 12);
                 substr($info, 24, 8) = pack('Q', 512);
                 done(ioctl($device, 0x4c04, $info))"
            }
            Self::AllowWrites => "my $off = pack('i', 0); done(ioctl($device, 0x125d, $off))",
            Self::Write => "done(syswrite($device, 'x' x 512))",
        }
    }
}

/// Makes a container's own node for the device at a target: a copy that is not removed with the target.
pub fn node_like(target: &Path, node: &Path) -> Result<PathBuf> {
    let device = fs::metadata(target)?.rdev();
    ensure!(rustix::fs::major(device) == 7, "{} is no loop device", target.display());
    mknodat(CWD, node, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, device)?;
    Ok(node.to_owned())
}

/// Attempts something on the device behind a node, as root without any capability, in a separate process that may read
/// from the device and, if `writing`, write to it. Returns 0 or the errno.
pub fn attempt(attempt: Attempt, node: &Path, writing: bool, own_file: &Path) -> Result<i32> {
    let mode = if writing { "+<" } else { "<" };
    let script = format!(
        "sub done {{ exit($_[0] ? 0 : $! + 0) }} open(my $device, '{mode}', shift @ARGV) or exit 97; {}",
        attempt.script()
    );
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]);
    let status = command.args(["perl", "-e", &script]).arg(node).arg(own_file).status().context("run setpriv")?;
    let errno = status.code().context("the attacker was killed")?;
    ensure!(errno < 97, "{attempt:?} by way of {} ends with {errno}", node.display());
    Ok(errno)
}

/// Puts a directory or a file into another project, as its owner can, even through a published mount.
pub fn retag(path: &Path, project: impl Display) -> Result<()> {
    run(Command::new("chattr").args(["-p", &project.to_string()]).arg(path))
}

/// Makes a block volume, publishes it, deletes it, and returns a container's own node for the device that is gone.
pub fn spent_node(rig: &Rig, id: &str, spec: VolumeSpec) -> Result<PathBuf> {
    let helper = rig.helper()?;
    helper.ask_all([helper::create(id, spec), helper::attach(id), helper::make_device(id, id)])?;
    let node = node_like(&rig.target(id), &rig.work().join(id))?;
    helper.ask_all([helper::remove_device(id, id), helper::detach(id), helper::delete(id)])?;
    let number = rustix::fs::minor(fs::metadata(&node)?.rdev());
    rig.eventually(15, || {
        let is_there = Path::new(&format!("/sys/dev/block/7:{number}")).exists();
        ensure!(!is_there, "device {number} is not removed");
        Ok(())
    })?;
    Ok(node)
}

/// The first bytes of a device or a file.
pub fn first_bytes<const LENGTH: usize>(path: &Path) -> Result<[u8; LENGTH]> {
    let mut found = [0; LENGTH];
    File::open(path)?.read_exact(&mut found).with_context(|| format!("read {}", path.display()))?;
    Ok(found)
}
