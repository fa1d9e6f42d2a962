//! What executes a machine's instructions, and which engine suits which machine.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err::{self as fs, File, OpenOptions};
use tempfile::TempDir;

use super::kernel::Kernel;
use super::network::Network;
use super::process::Process;
use super::{Options, qemu, user_mode};
use crate::workspace::Architecture;

/// The console's log, in the machine's directory.
pub const CONSOLE: &str = "console.log";

/// How a machine is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// As an ordinary program of this host, by user-mode Linux: several times faster than a translated processor. It has
    /// one processor, and a kernel of its own.
    UserMode,
    /// Under QEMU, by the processor.
    Kvm,
    /// Under QEMU, by translation: slow, but it works everywhere.
    Translated,
}

impl Engine {
    /// The best engine for a machine. Whether KVM works is not known before it is tried.
    pub fn best(options: &Options, cache: &Path) -> Engine {
        if suits_user_mode(options) {
            Engine::UserMode
        } else if kvm_may_work(options.architecture, cache) {
            Engine::Kvm
        } else {
            Engine::Translated
        }
    }

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Engine::UserMode => "user mode",
            Engine::Kvm => "kvm",
            Engine::Translated => "tcg",
        }
    }

    /// Starts a guest whose agent has the other end of this socket. The process is tied to the calling thread: the
    /// kernel kills it when that thread ends.
    pub fn start(self, guest: &Guest, agent: &UnixStream) -> Result<Process> {
        let directory = guest.directory.path();
        match self {
            Engine::UserMode => {
                let network = match &guest.ports[..] {
                    [] => None,
                    ports => Some(Network::start(ports, directory)?),
                };
                let linux = user_mode::program(guest, agent, network.as_ref().map(|(_, kernels)| kernels))?;
                let mut process = Process::start(linux, agent, directory, CONSOLE)?;
                process.network = network.map(|(network, _)| network);
                Ok(process)
            }
            Engine::Kvm | Engine::Translated => {
                Process::start(qemu::program(guest, self, agent), agent, directory, qemu::LOG)
            }
        }
    }

    /// Records that KVM could not boot a guest on this host.
    pub fn remember_that_kvm_fails(cache: &Path) -> Result<()> {
        File::create(verdict(cache)).context("note that KVM does not work here")?;
        Ok(())
    }
}

/// Returns whether user-mode Linux has what the machine needs: it exists for one architecture.
pub fn suits_user_mode(options: &Options) -> bool {
    let needs_qemu = options.qemu || options.kernel.is_some();
    !needs_qemu && [options.architecture, Architecture::host()] == [Architecture::Amd64; 2]
}

/// Returns whether KVM is worth trying. Only booting a guest shows whether it works, so a failure is remembered in the
/// cache for as long as the host runs the same kernel.
fn kvm_may_work(architecture: Architecture, cache: &Path) -> bool {
    let usable = OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    usable && architecture == Architecture::host() && !verdict(cache).exists()
}

fn verdict(cache: &Path) -> PathBuf {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    cache.join(format!("no-kvm-on-{}", release.trim()))
}

/// What a guest is started from, the first time, and after each reboot and power cut.
pub struct Guest {
    /// The processor.
    pub architecture: Architecture,
    /// Memory in MiB.
    pub memory: u32,
    /// How many processors it has, where the engine has more than one.
    pub processors: u32,
    /// The kernel.
    pub kernel: Kernel,
    /// The first root filesystem.
    pub initrd: PathBuf,
    /// Additional words for the kernel's command line.
    pub append: &'static str,
    /// The ports forwarded from the host's loopback device. Without any the guest has no network.
    pub ports: Vec<u16>,
    /// The serial number and image of each disk.
    pub disks: Vec<(String, PathBuf)>,
    /// Where the console's log and the engine's own log go.
    pub directory: TempDir,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_mode_is_for_machines_with_its_own_kernel() {
        let usual = || Options::new(Vec::new());
        assert_eq!(suits_user_mode(&usual()), Architecture::host() == Architecture::Amd64);
        for other in [
            Options { architecture: Architecture::Arm64, ..usual() },
            Options { kernel: Some("linux-image-amd64".to_owned()), ..usual() },
            Options { qemu: true, ..usual() },
        ] {
            assert!(!suits_user_mode(&other));
        }
    }
}
