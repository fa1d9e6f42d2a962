//! QEMU's command line.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use bulkhead_vm_agent::PORT_NAME;

use super::engine::{CONSOLE, Engine, Guest};
use crate::process::command;
use crate::workspace::Architecture;

/// QEMU's own log, in the machine's directory.
pub const LOG: &str = "qemu.log";

/// The kernel patches its own code while it boots: it writes a breakpoint first, and the instruction once every
/// processor has seen that. QEMU's translator, before version 8.1 (commit deba78709ae8), may keep the breakpoint if
/// another processor hits it at that moment, and the kernel panics. So an emulated guest boots on one processor, and
/// its init starts the others.
const ONE_PROCESSOR_AT_FIRST: &str = "maxcpus=1";

/// Features that cost an emulated processor time and prove nothing here: mitigations for speculation that it does not
/// have, and clearing pages each time they are allocated.
const NO_HARDENING: &str = "mitigations=off init_on_alloc=0";

/// Every feature of x86_64 except a fifth level of page tables, which makes each page walk longer.
const EMULATED: &str = "max,la57=off";

/// The program and its arguments, for a guest whose agent has the other end of this socket.
pub fn program(guest: &Guest, engine: Engine, agent: &UnixStream) -> Command {
    let (program, console, machine, emulated) = match guest.architecture {
        Architecture::Amd64 => ("qemu-system-x86_64", "ttyS0", "q35", EMULATED),
        Architecture::Arm64 => ("qemu-system-aarch64", "ttyAMA0", "virt", "max"),
    };
    let mut qemu = command("setpriv");
    qemu.args(["--pdeathsig", "KILL", "--", program]);
    qemu.args(["-nodefaults", "-no-user-config", "-display", "none"]);
    qemu.args(["-smp", &guest.processors.to_string()]);
    // When QEMU resets an emulated guest with two processors, one of them may spin for ever.
    qemu.args(["-no-reboot", "-machine", machine]);
    // A panic stops the guest on the spot, so that the console's log ends with it.
    let mut append = format!("console={console} loglevel=4 oops=panic panic=0 {}", guest.append);
    if engine == Engine::Kvm {
        qemu.args(["-accel", "kvm", "-cpu", "host"]);
    } else {
        qemu.args(["-accel", "tcg,thread=multi", "-cpu", emulated]);
        append = format!("{append} {ONE_PROCESSOR_AT_FIRST} {NO_HARDENING}");
    }
    qemu.args(["-m", &guest.memory.to_string()]);
    qemu.arg("-kernel").arg(&guest.kernel.image).arg("-initrd").arg(&guest.initrd);
    qemu.args(["-append", &append]);
    qemu.args(["-chardev", &format!("file,id=console,path={CONSOLE},append=on"), "-serial", "chardev:console"]);
    qemu.args(["-device", "virtio-serial-pci", "-chardev", &format!("socket,id=agent,fd={}", agent.as_raw_fd())]);
    qemu.args(["-device", &format!("virtserialport,chardev=agent,name={PORT_NAME}")]);
    for (serial, image) in &guest.disks {
        // Flushes are ignored: data that has reached QEMU outlives it in the host's page cache, and a power cut loses what
        // the guest had not written yet.
        let drive = format!("if=none,id={serial},format=raw,cache=unsafe,discard=unmap,file={}", image.display());
        qemu.args(["-drive", &drive, "-device", &format!("virtio-blk-pci,drive={serial},serial={serial}")]);
    }
    if !guest.ports.is_empty() {
        let forward = |port: &u16| format!(",hostfwd=tcp:127.0.0.1:{port}-:{port}");
        let forwarded: String = guest.ports.iter().map(forward).collect();
        qemu.args(["-netdev", &format!("user,id=network{forwarded}")]);
        qemu.args(["-device", "virtio-net-pci,netdev=network,romfile="]);
    }
    qemu
}
