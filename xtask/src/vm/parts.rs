//! Everything that a machine is started from.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::apt::Apt;
use super::disks::{Disk, NODE_POOL, POOLS, STATE};
use super::engine::{Guest, suits_user_mode};
use super::kernel::Kernel;
use super::root::{self, Content};
use super::tools::{self, Tools};
use super::{Options, Userland, debian, node, user_mode_kernel};
use crate::cache;
use crate::directory::run_directory;
use crate::packages;
use crate::process::{command, run_quietly};
use crate::workspace::{Architecture, Workspace};

/// The program that runs the commands in the machine.
pub const AGENT: &str = "bulkhead-vm-agent";

/// What the kernel's command line says in the small machine: nobody reads what is audited.
const SMALL_WORDS: &str = "audit=0";

/// Makes sure that this host has the packages needed to make a machine. Worth doing before a long build.
pub fn require_packages(architecture: Architecture) -> Result<()> {
    let engines: &[_] = match architecture {
        Architecture::Amd64 => &["qemu-system-x86", "passt"],
        Architecture::Arm64 => &["qemu-system-arm"],
    };
    packages::require(&engines.iter().copied().chain(["kmod"]).chain(tools::packages()).collect::<Vec<_>>())
}

/// Installs, downloads, formats and packs what a guest is started from.
pub fn provide(workspace: &Workspace, options: &Options) -> Result<Guest> {
    require_packages(options.architecture)?;
    let machine = workspace.machine_cache()?;
    let apt = Apt::new(&machine, options.architecture, None);
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
    let (own, system, node): (Vec<&Disk>, _, _) = match &options.userland {
        Userland::Small => (POOLS.iter().chain([&STATE]).collect(), None, None),
        Userland::Debian => (POOLS.iter().collect(), Some(debian::PLAIN), None),
        Userland::Node(node) => (vec![&NODE_POOL], Some(node.system()), Some(node)),
    };
    let mut disks = options.more_disks.clone();
    if let Some(system) = &system {
        disks.push(copy_system(workspace, options, system, directory.path())?);
    }
    let mut fstab = String::new();
    if let Some(node) = node {
        disks.push((node::LABEL.to_owned(), node.make_disk(&kernel, directory.path())?));
        fstab += &node.fstab();
    }
    for disk in own {
        disks.push((disk.label.to_owned(), disk.make(directory.path(), options.disk)?));
        fstab += &disk.fstab();
    }
    let content = Content { kernel: &kernel, tools: &tools, programs: &options.programs, fstab: &fstab };
    let initrd = directory.path().join("initrd");
    root::write(&initrd, &content, &options.userland)?;
    Ok(Guest {
        kernel,
        initrd,
        architecture: options.architecture,
        memory: options.memory,
        processors: options.userland.processors(),
        append: system.map_or(SMALL_WORDS, |system| system.words),
        ports: node.map_or_else(Vec::new, |node| vec![node.kubelet_port, node.relay_port]),
        disks,
        directory,
    })
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
