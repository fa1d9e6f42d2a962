//! The QEMU process: its arguments, its accelerator, and how it ends.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};
use bulkhead_vm_agent::PORT_NAME;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::process::command;
use crate::workspace::Architecture;

/// The kernel patches its own code while it boots: it writes a breakpoint first, and the instruction once every
/// processor has seen that. QEMU's translator, before version 8.1 (commit deba78709ae8), may keep the breakpoint if
/// another processor hits it at that moment, and the kernel panics. So an emulated guest boots on one processor, and
/// its init starts the others.
const ONE_PROCESSOR_AT_FIRST: &str = "maxcpus=1";

/// Features that cost an emulated processor time and prove nothing here: mitigations for speculation that it does not
/// have, and clearing pages each time they are allocated.
const NO_HARDENING: &str = "mitigations=off init_on_alloc=0";

/// Every feature except a fifth level of page tables, which makes each page walk longer.
const EMULATED: &str = "max,la57=off";

/// How the guest's instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// By the processor.
    Kvm,
    /// By translation: slow, but it works everywhere.
    Tcg,
}

impl Accelerator {
    /// Its name on QEMU's command line.
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }

    /// Returns whether KVM is worth trying. Only booting a guest shows whether it works, so a failure is remembered in
    /// the cache for as long as the host runs the same kernel.
    pub fn kvm_may_work(architecture: Architecture, cache: &Path) -> bool {
        let usable = OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
        usable && architecture == Architecture::host() && !verdict(cache).exists()
    }

    /// Records that KVM could not boot a guest on this host.
    pub fn remember_that_kvm_fails(cache: &Path) -> Result<()> {
        File::create(verdict(cache)).context("note that KVM does not work here")?;
        Ok(())
    }
}

fn verdict(cache: &Path) -> PathBuf {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    cache.join(format!("no-kvm-on-{}", release.trim()))
}

/// What a guest is made of, apart from its disks.
pub struct Guest<'a> {
    /// The processor.
    pub architecture: Architecture,
    /// Memory in MiB.
    pub memory: u32,
    /// How many processors it has.
    pub processors: u32,
    /// The kernel's image.
    pub kernel: &'a Path,
    /// The first root filesystem.
    pub initrd: &'a Path,
    /// Additional words for the kernel's command line.
    pub append: &'a str,
    /// The ports forwarded from the host's loopback device. Without any the guest has no network.
    pub ports: &'a [u16],
    /// The serial number and image of each disk.
    pub disks: &'a [(String, PathBuf)],
    /// Where the console's log and QEMU's own log go.
    pub directory: &'a Path,
}

/// A running QEMU. It ends when this value is dropped, and with this process, however that ends.
pub struct Qemu {
    child: Child,
}

impl Qemu {
    /// Starts it. It is tied to the calling thread: the kernel kills it when that thread ends.
    pub fn start(guest: &Guest<'_>, accelerator: Accelerator, agent: UnixStream) -> Result<Self> {
        let (program, console) = match guest.architecture {
            Architecture::Amd64 => ("qemu-system-x86_64", "ttyS0"),
            Architecture::Arm64 => ("qemu-system-aarch64", "ttyAMA0"),
        };
        let mut qemu = command("setpriv");
        qemu.args(["--pdeathsig", "KILL", "--", program]);
        qemu.args(["-nodefaults", "-no-user-config", "-display", "none"]);
        qemu.args(["-smp", &guest.processors.to_string()]);
        // When QEMU resets an emulated guest with two processors, one of them may spin for ever.
        qemu.arg("-no-reboot");
        match guest.architecture {
            Architecture::Amd64 => qemu.args(["-machine", "q35"]),
            Architecture::Arm64 => qemu.args(["-machine", "virt"]),
        };
        // A panic stops the guest on the spot, so that the console's log ends with it.
        let mut append = format!("console={console} loglevel=4 oops=panic panic=0 {}", guest.append);
        match accelerator {
            Accelerator::Kvm => {
                qemu.args(["-accel", "kvm", "-cpu", "host"]);
            }
            Accelerator::Tcg => {
                let processor = if guest.architecture == Architecture::Amd64 { EMULATED } else { "max" };
                qemu.args(["-accel", "tcg,thread=multi", "-cpu", processor]);
                append = format!("{append} {ONE_PROCESSOR_AT_FIRST} {NO_HARDENING}");
            }
        }
        qemu.args(["-m", &guest.memory.to_string()]);
        qemu.arg("-kernel").arg(guest.kernel).arg("-initrd").arg(guest.initrd);
        qemu.args(["-append", &append]);
        qemu.args(["-chardev", "file,id=console,path=console.log,append=on", "-serial", "chardev:console"]);
        qemu.args(["-device", "virtio-serial-pci", "-chardev", &format!("socket,id=agent,fd={}", agent.as_raw_fd())]);
        qemu.args(["-device", &format!("virtserialport,chardev=agent,name={PORT_NAME}")]);
        for (serial, image) in guest.disks {
            add_disk(&mut qemu, serial, image);
        }
        if !guest.ports.is_empty() {
            let forward = |port: &u16| format!(",hostfwd=tcp:127.0.0.1:{port}-:{port}");
            let forwarded: String = guest.ports.iter().map(forward).collect();
            qemu.args(["-netdev", &format!("user,id=network{forwarded}")]);
            qemu.args(["-device", "virtio-net-pci,netdev=network,romfile="]);
        }
        let log = OpenOptions::new().append(true).create(true).open(guest.directory.join("qemu.log"))?;
        qemu.current_dir(guest.directory).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        fcntl_setfd(&agent, FdFlags::empty())?;
        let child = qemu.spawn().context("start QEMU")?;
        Ok(Qemu { child })
    }

    /// How the process has ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Kills the process and waits until it has ended.
    pub fn kill(&mut self) {
        // It may have ended already: then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Ignores flushes: data that has reached QEMU outlives it in the host's page cache, and a power cut loses what the
/// guest had not written yet.
fn add_disk(qemu: &mut Command, serial: &str, image: &Path) {
    let file = image.display();
    qemu.args(["-drive", &format!("if=none,id={serial},format=raw,cache=unsafe,discard=unmap,file={file}")]);
    qemu.args(["-device", &format!("virtio-blk-pci,drive={serial},serial={serial}")]);
}
