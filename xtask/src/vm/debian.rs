//! A complete Debian for the machine: systemd as PID 1, udev, dbus.
//!
//! Its disk is made without root on any host: mmdebstrap writes an archive, and a small machine unpacks it onto the
//! disk, where setting owners and making device nodes needs no permission on the host. The disk is kept together with
//! its list of packages, and made anew when the list changes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fs_err::{self as fs, File, OpenOptions};

use super::{Machine, Options};
use crate::packages;
use crate::process::{command, run_quietly};
use crate::progress::timed;
use crate::workspace::Workspace;

/// The label of the disk's filesystem, and its serial number.
pub const LABEL: &str = "debian";

/// The packages added to the minimal system.
const PACKAGES: &str = "systemd,systemd-sysv,dbus,udev,kmod,iproute2,procps,mount,util-linux,e2fsprogs,xfsprogs,\
                        quota,attr,ca-certificates";

/// The packages that a Kubernetes node needs in addition.
const NODE_PACKAGES: &str = "containerd,runc,containernetworking-plugins";

/// The packages that it needs in addition where SELinux enforces.
const SELINUX_PACKAGES: &str = "selinux-policy-default,policycoreutils";

/// A login prompt would hang up the console for everything else that writes there. Without the traditional names, the
/// name of the network device would depend on the number of disks.
const WORDS: &str = "systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service net.ifnames=0 quiet audit=0";

/// With every denial in the kernel's log, however many there are.
const ENFORCING_WORDS: &str = "systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service net.ifnames=0 quiet lsm=landlock,selinux enforcing=1 \
     sysctl.kernel.printk_ratelimit=0 log_buf_len=4M";

/// A disk with Debian on it.
pub struct System {
    name: &'static str,
    /// The release, if it is not this host's.
    suite: Option<&'static str>,
    packages: &'static [&'static str],
    /// The machine's module of SELinux's policy.
    module: Option<&'static str>,
    /// What the kernel's command line says for it.
    pub words: &'static str,
}

/// Debian with systemd.
pub const PLAIN: System = System { name: "debian", suite: None, packages: &[PACKAGES], module: None, words: WORDS };

/// Debian with containerd, for a kubelet.
pub const NODE: System =
    System { name: "node", suite: None, packages: &[PACKAGES, NODE_PACKAGES], module: None, words: WORDS };

/// The same, where SELinux enforces. Only since Debian 13 does its policy know Kubernetes.
pub const ENFORCING_NODE: System = System {
    name: "enforcing-node",
    suite: Some("trixie"),
    packages: &[PACKAGES, NODE_PACKAGES, SELINUX_PACKAGES],
    module: Some(include_str!("guest/enforcing/machine.cil")),
    words: ENFORCING_WORDS,
};

const MEBIBYTES: u64 = 4096;
const UNPACK_TIMEOUT: Duration = Duration::from_secs(900);

/// The cached disk, which is made if it does not exist yet.
pub fn provide(workspace: &Workspace, agent: &Path, system: &System) -> Result<PathBuf> {
    let cache = workspace.machine_cache()?;
    let image = cache.join(format!("{}.disk", system.name));
    let list = image.with_extension("parts");
    let parts = format!("{} {}\n{}", system.suite()?, system.packages.join(","), system.module.unwrap_or_default());
    if !image.exists() || fs::read_to_string(&list).unwrap_or_default() != parts {
        packages::require(&["mmdebstrap", "uidmap", "arch-test"])?;
        let archive = image.with_extension("tar");
        timed(format_args!("gathering Debian for the disk {}", system.name), || gather(system, &archive))?;
        timed("making the disk", || unpack(workspace, agent, &archive, &image))?;
        fs::remove_file(&archive)?;
        fs::write(&list, parts)?;
    }
    Ok(image)
}

impl System {
    /// Its Debian release: this host's, if it needs no other. This host has the signing keys of both.
    fn suite(&self) -> Result<String> {
        if let Some(suite) = self.suite {
            return Ok(suite.to_owned());
        }
        let release = fs::read_to_string("/etc/os-release").context("read which Debian this is")?;
        let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        Ok(codename.context("/etc/os-release names no Debian release")?.trim_matches('"').to_owned())
    }
}

fn gather(system: &System, archive: &Path) -> Result<()> {
    let mut gather = command("mmdebstrap");
    gather.args(["--quiet", "--variant=minbase", &format!("--include={}", system.packages.join(","))]);
    gather.args(["--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/locale/*"]);
    let module = archive.with_file_name("machine.cil");
    if let Some(text) = system.module {
        fs::write(&module, text)?;
        gather.arg(format!("--customize-hook=copy-in '{}' /root", module.display()));
        gather.arg("--customize-hook=chroot \"$1\" semodule --noreload --install /root/machine.cil");
    }
    run_quietly(gather.arg(system.suite()?).arg(archive))
        .context("gather Debian's packages: this needs root, or a user with subordinate ids (/etc/subuid)")
}

fn unpack(workspace: &Workspace, agent: &Path, archive: &Path, image: &Path) -> Result<()> {
    let partial = image.with_extension("partial");
    File::create(&partial)?.set_len(MEBIBYTES << 20)?;
    run_quietly(command("mkfs.ext4").args(["-q", "-F", "-L", LABEL]).arg(&partial))?;
    // A disk consists of whole sectors; tar ignores anything after the archive's end.
    let tar = OpenOptions::new().write(true).open(archive)?;
    tar.set_len(tar.metadata()?.len().next_multiple_of(4096))?;
    // Whoever wants only a node does not wait for a kernel to be built.
    let mut options = Options { qemu: true, ..Options::new(vec![agent.to_owned()]) };
    options.more_disks = vec![(LABEL.to_owned(), partial.clone()), ("archive".to_owned(), archive.to_owned())];
    let mut machine = Machine::boot(workspace, &options)?;
    let script = "set -e
        for disk in /sys/block/vd*; do
            if [ \"$(cat $disk/serial)\" = archive ]; then archive=/dev/${disk##*/}; fi
        done
        mkdir /debian && mount LABEL=debian /debian
        tar -xf \"$archive\" -C /debian
        umount /debian";
    let status = machine.run(script, UNPACK_TIMEOUT)?;
    ensure!(status.success(), "unpacking Debian in the machine: {status}");
    fs::rename(&partial, image).context("put Debian's disk in place")
}
