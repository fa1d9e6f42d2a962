//! Everything that a machine is started from, the first time, and after each reboot and power cut.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::apt::Apt;
use super::disks::{Disk, NODE_POOL, POOLS, STATE};
use super::engine::{Engine, Guest, suits_user_mode};
use super::kernel::Kernel;
use super::root::{self, Content};
use super::session::Session;
use super::tools::{self, Tools};
use super::{BOOT_PATIENCE, Options, Userland, debian, node, user_mode_kernel};
use crate::cache;
use crate::directory::run_directory;
use crate::packages;
use crate::process::{command, run_quietly};
use crate::progress::say;
use crate::workspace::{Architecture, Workspace};

const KVM_PATIENCE: Duration = Duration::from_secs(15);
/// The program that runs the commands in the machine.
pub const AGENT: &str = "bulkhead-vm-agent";

/// A login prompt would hang up the console for everything else that writes there. Without the traditional names, the
/// name of the network device would depend on the number of disks.
const DEBIAN_WORDS: &str = "systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service net.ifnames=0 quiet";

/// Makes sure that this host has the packages needed to make a machine. Worth doing before a long build.
pub fn require_packages(architecture: Architecture) -> Result<()> {
    let engines: &[_] = match architecture {
        Architecture::Amd64 => &["qemu-system-x86", "passt"],
        Architecture::Arm64 => &["qemu-system-arm"],
    };
    packages::require(&engines.iter().copied().chain(["kmod"]).chain(tools::packages()).collect::<Vec<_>>())
}

/// A machine that is not running.
pub struct Parts {
    kernel: Kernel,
    architecture: Architecture,
    memory: u32,
    processors: u32,
    append: &'static str,
    ports: Vec<u16>,
    disks: Vec<(String, PathBuf)>,
    directory: TempDir,
}

impl Parts {
    /// Installs, downloads, formats and packs the parts.
    pub fn provide(workspace: &Workspace, options: &Options) -> Result<Self> {
        require_packages(options.architecture)?;
        let machine = workspace.machine_cache()?;
        let apt = Apt::new(&machine, options.architecture)?;
        let kernel = if suits_user_mode(options) {
            user_mode_kernel::provide(&machine, options.architecture)?
        } else {
            let _lock = cache::lock(&machine, "packages")?;
            Kernel::provide(&machine, &apt, options.kernel.as_deref())?
        };
        let tools = {
            let _lock = cache::lock(&machine, "packages")?;
            Tools::provide(&machine, options.architecture, &apt)?
        };
        let directory = run_directory(&workspace.runs())?;
        let mut disks = options.more_disks.clone();
        let mut own: Vec<&Disk> = Vec::new();
        let mut fstab = String::new();
        let mut append = "";
        match &options.userland {
            Userland::Small => own.extend(POOLS.iter().chain([&STATE])),
            Userland::Debian => {
                own.extend(&POOLS);
                disks.push(copy_system(workspace, options, &debian::PLAIN, directory.path())?);
                append = DEBIAN_WORDS;
            }
            Userland::Node(node) => {
                own.push(&NODE_POOL);
                disks.push(copy_system(workspace, options, &debian::NODE, directory.path())?);
                disks.push((node::LABEL.to_owned(), node.make_disk(&kernel, directory.path())?));
                fstab += node::FSTAB;
                append = DEBIAN_WORDS;
            }
        }
        for disk in &own {
            disks.push((disk.label.to_owned(), disk.make(directory.path(), options.disk)?));
        }
        fstab.extend(own.iter().map(|disk| disk.fstab()));
        let content = Content { kernel: &kernel, tools: &tools, programs: &options.programs, fstab: &fstab };
        let archive = directory.path().join("initrd");
        let mut ports = Vec::new();
        match &options.userland {
            Userland::Small => root::write_small(&archive, &content)?,
            Userland::Debian => root::write_debian(&archive, &content, None)?,
            Userland::Node(node) => {
                root::write_debian(&archive, &content, Some(node))?;
                ports = vec![node.kubelet_port, node.relay_port];
            }
        }
        Ok(Parts {
            kernel,
            architecture: options.architecture,
            memory: options.memory,
            processors: options.userland.processors(),
            append,
            ports,
            disks,
            directory,
        })
    }

    /// Boots, and waits until the agent is ready for commands.
    pub fn start(&self, engine: Engine) -> Result<Session> {
        let start = Instant::now();
        let guest = Guest {
            architecture: self.architecture,
            memory: self.memory,
            processors: self.processors,
            kernel: &self.kernel.image,
            initrd: &self.directory.path().join("initrd"),
            append: self.append,
            ports: &self.ports,
            disks: &self.disks,
            directory: self.directory.path(),
        };
        let patience = if engine == Engine::Kvm { KVM_PATIENCE } else { BOOT_PATIENCE };
        let session = Session::start(&guest, engine, patience)?;
        let (release, seconds) = (&self.kernel.release, start.elapsed().as_secs_f64());
        say(format_args!("booted Linux {release} ({}) in {seconds:.1} s", engine.name()));
        Ok(session)
    }
}

/// A copy of Debian's disk that only this machine uses.
fn copy_system(
    workspace: &Workspace,
    options: &Options,
    system: &debian::System,
    directory: &Path,
) -> Result<(String, PathBuf)> {
    let _lock = cache::lock(&workspace.machine_cache()?, "debian")?;
    let agent = options.programs.iter().find(|path| path.ends_with(AGENT)).context("no agent is built")?;
    let cached = debian::provide(workspace, agent, system)?;
    let image = directory.join("debian.disk");
    run_quietly(command("cp").args(["--sparse=always", "--reflink=auto"]).args([&cached, &image]))?;
    Ok((debian::LABEL.to_owned(), image))
}
