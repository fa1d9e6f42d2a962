//! The seccomp profile for pods, in the container runtime that such pods run in.

use std::collections::BTreeMap;
use std::os::unix::fs::chown;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::csi::requests::*;

use crate::container::{self, USER};
use crate::node::{Node, TENANT_PROFILE};

cases! {
    on Node;
    the_profile_keeps_a_tenant_from_changing_project_ids_and_commanding_loop_devices,
}

const EPERM: i32 = 1;
const ENOTTY: i32 = 25;
const ENOSYS: i32 = 38;

/// Tries each call on a file of its own in the volume, and prints a line `NAME ERRNO` for it.
const ATTEMPTS: &str = r#"
use strict;
open(my $file, '+>', '/data/file') or die "open: $!";
sub report { my ($name, $done) = @_; printf "%s %d\n", $name, $done ? 0 : $!; }
report('write', syswrite($file, 'content'));
my $attributes = "\0" x 64;
report('FS_IOC_FSGETXATTR', ioctl($file, 0x801c581f, $attributes));
substr($attributes, 12, 4) = pack('L', 77);
report('FS_IOC_FSSETXATTR', ioctl($file, 0x401c5820, $attributes));
my $flags = "\0" x 64;
report('FS_IOC_GETFLAGS', ioctl($file, 0x80086601, $flags));
$flags = pack('L', unpack('L', $flags) | 0x40) . "\0" x 60;
report('FS_IOC_SETFLAGS', ioctl($file, 0x40086602, $flags));
report('FS_IOC32_SETFLAGS', ioctl($file, 0x40046602, $flags));
# Bits beyond the command's 32 are cut off by the kernel, and must not get it past the filter.
report('FS_IOC_FSSETXATTR-long', ioctl($file, 0x1401c5820, $attributes));
# Numbers of loop devices and their neighbours; the filter does not know that this is a file.
for my $command (0x4bff, 0x4c00 .. 0x4c0a, 0x4cff, 0x4d00) {
    report(sprintf('%#x', $command), ioctl($file, $command, 0));
}
report('TCGETS', ioctl($file, 0x5401, my $terminal = "\0" x 64));
my $name = "/data/file\0";
my $new = "\0" x 24;
report('file_setattr', syscall(469, -100, $name, $new, 24, 0) == 0);
"#;

fn the_profile_keeps_a_tenant_from_changing_project_ids_and_commanding_loop_devices(node: &mut Node) -> Result<()> {
    // By a handle, CAP_DAC_READ_SEARCH opens any file of the pool's filesystem. What the profile does not name is refused.
    let refuses_the_rest = TENANT_PROFILE.contains(r#""defaultAction": "SCMP_ACT_ERRNO""#);
    ensure!(refuses_the_rest && !TENANT_PROFILE.contains("open_by_handle_at"), "the profile lets tenants open handles");
    let csi = node.csi()?;
    let target = node.kubelet.prepare("vol-a", "pv-a", "pod-a")?;
    csi.create_volume(create("vol-a", 16 * MIB, mount()))?;
    csi.node_publish_volume(publish("vol-a", &target, mount()))?;
    chown(&target, Some(USER), Some(USER))?;
    let attempt = |name: &str, profile: Option<&str>| -> Result<BTreeMap<String, i32>> {
        let lines = container::run(&node.work.join(name), &target, &["/usr/bin/perl", "-e", ATTEMPTS], profile)?;
        let parsed = lines.lines().map(|line| {
            let (name, errno) = line.split_once(' ').context("a line without a number")?;
            Ok((name.to_owned(), errno.parse()?))
        });
        parsed.collect()
    };
    let free = attempt("free", None)?;
    let fenced = attempt("fenced", Some(TENANT_PROFILE))?;
    csi.node_unpublish_volume(unpublish("vol-a", &target))?;
    csi.delete_volume(delete("vol-a"))?;

    // Without it the owner of a file may do everything that the kernel offers.
    for (name, errno) in [
        ("FS_IOC_FSSETXATTR", 0),
        ("FS_IOC_FSSETXATTR-long", 0),
        ("FS_IOC_SETFLAGS", 0),
        ("FS_IOC32_SETFLAGS", ENOTTY),
        ("TCGETS", ENOTTY),
    ] {
        ensure!(free.get(name) == Some(&errno), "without the profile {name} ends with {free:?}");
    }
    for name in ["FS_IOC_FSSETXATTR", "FS_IOC_FSSETXATTR-long", "FS_IOC_SETFLAGS", "FS_IOC32_SETFLAGS"] {
        ensure!(fenced.get(name) == Some(&EPERM), "with the profile {name} ends with {fenced:?}");
    }
    for (name, errno) in fenced.iter().filter(|(name, _)| name.starts_with("0x")) {
        let expected = if name.starts_with("0x4c") { EPERM } else { ENOTTY };
        ensure!(*errno == expected, "with the profile command {name} ends with {errno}");
    }
    let unknown = fenced.get("file_setattr").is_some_and(|errno| matches!(*errno, EPERM | ENOSYS));
    ensure!(unknown, "with the profile file_setattr ends with {fenced:?}");
    for name in ["write", "FS_IOC_FSGETXATTR", "FS_IOC_GETFLAGS", "TCGETS"] {
        ensure!(fenced.get(name) == free.get(name), "the profile changes {name}: {free:?}, {fenced:?}");
    }
    Ok(())
}
