//! User-mode Linux: the kernel as a program of this host, without any privileges.
//!
//! Its memory is a file without a name in /dev/shm, its disks are the same files that QEMU uses, and each address space
//! of the guest is a process of this host that the kernel traces.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_vm_agent::PORT_VARIABLE;
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::{FdFlags, fcntl_setfd};

use super::engine::Guest;
use crate::process::command;

/// Where its memory is: a file on a disk would be written back all the time.
const MEMORY: &str = "/dev/shm";

/// The program and its arguments, for a guest whose agent has the other end of this socket, and whose network, if it has
/// one, is on the other end of that.
pub fn program(guest: &Guest, agent: &UnixStream, network: Option<&OwnedFd>) -> Result<Command> {
    let mut linux = command("setpriv");
    linux.args(["--pdeathsig", "KILL", "--"]).args(room_for(guest.memory)?).arg(&guest.kernel.image);
    // When it panics, it sends a signal to its whole process group.
    linux.process_group(0);
    linux.env("TMPDIR", MEMORY);
    // A program of the guest hands over its system calls by a filter, where kernel and host can do that; else it is traced.
    linux.arg("seccomp=auto");
    linux.arg(format!("mem={}M", guest.memory)).arg(format!("initrd={}", guest.initrd.display()));
    // Files about the process, which would otherwise be in the user's home.
    linux.arg("uml_dir=user-mode/");
    linux.args(["con0=null,fd:1", "con=null", "console=tty0", "loglevel=4", "oops=panic", "panic=0", "noreboot"]);
    linux.arg(format!("ssl0=fd:{}", agent.as_raw_fd())).arg(format!("{PORT_VARIABLE}=/dev/ttyS0"));
    for (number, (serial, image)) in guest.disks.iter().enumerate() {
        // d: what is in a file is never taken for the header of a copy-on-write file.
        linux.arg(format!("ubd{number}d={},,{serial}", image.display()));
    }
    if let Some(network) = network {
        fcntl_setfd(network, FdFlags::empty())?;
        linux.arg(format!("vec0:transport=fd,fd={}", network.as_raw_fd()));
    }
    linux.args(guest.append.split_whitespace());
    Ok(linux)
}

/// Makes room for the guest's memory: the kernel would be killed at the first page that does not fit. Returns the words
/// before the program that give it a filesystem of its own, for which root needs nobody: the host's may be small, as a
/// container's is, and others, such as another machine, fill it too.
fn room_for(mebibytes: u32) -> Result<Vec<String>> {
    if rustix::process::geteuid().is_root() {
        let script = format!("mount -t tmpfs -o size={}M memory {MEMORY} && exec \"$0\" \"$@\"", mebibytes + 1);
        return Ok(["unshare", "--mount", "sh", "-c", &script].map(String::from).to_vec());
    }
    let found = statvfs(MEMORY).with_context(|| format!("look at {MEMORY}, where the machine's memory would be"))?;
    let free = found.f_bavail.saturating_mul(found.f_frsize) >> 20;
    ensure!(
        free >= u64::from(mebibytes) && !found.f_flag.contains(StatVfsMountFlags::NOEXEC),
        "the machine's memory needs {mebibytes} MiB in {MEMORY}, mounted without noexec, where {free} MiB are free; this \
         mounts another one:\n\n    sudo mount -t tmpfs -o size={}M memory {MEMORY}\n\nor pass --qemu",
        2 * mebibytes
    );
    Ok(Vec::new())
}
