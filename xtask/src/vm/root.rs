//! What the kernel unpacks as its first root: one archive, written anew for every machine, so that it always contains
//! the programs just built.
//!
//! The small node keeps it as its root: busybox, modules, some tools of the host with their libraries. The complete
//! Debian is only started from it: what is below `overlay` comes over its disk. That includes an identity: with a known one
//! this is not a first boot, in which systemd would set up all units again.

use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err::{self as fs, File};

use super::Userland;
use super::cpio::Archive;
use super::kernel::Kernel;
use super::node::start_at_boot;
use super::tools::Tools;
use crate::process::{capture, command};

/// Where our programs are in the machine.
const PROGRAMS: &str = "opt/bulkhead/bin";

type Root = Archive<BufWriter<File>>;

/// What both roots contain.
pub struct Content<'a> {
    /// The kernel whose modules are loaded.
    pub kernel: &'a Kernel,
    /// busybox and the other tools.
    pub tools: &'a Tools,
    /// Our programs.
    pub programs: &'a [PathBuf],
    /// The machine's /etc/fstab.
    pub fstab: &'a str,
}

/// Writes the root of a machine.
pub fn write(archive: &Path, content: &Content<'_>, userland: &Userland) -> Result<()> {
    let mut root = begin(archive, content)?;
    let (tree, place) = if *userland == Userland::Small { ("small", "") } else { ("debian", "overlay/") };
    root.tree(tree)?;
    root.file(&format!("{place}etc/fstab"), 0o644, content.fstab.as_bytes())?;
    for program in content.programs {
        add(&mut root, program, &format!("{place}{PROGRAMS}/{}", file_name(program)?))?;
    }
    if *userland == Userland::Small {
        root.symlink("etc/mtab", "/proc/self/mounts")?;
        // The shell of Debian's busybox prefers its own applets to the programs in the PATH.
        root.symlink("usr/bin/sh", "dash")?;
    } else {
        start_at_boot(&mut root, "bulkhead-vm-agent.service", "multi-user")?;
    }
    if let Userland::Node(node) = userland {
        node.add_files(&mut root, content.kernel)?;
    }
    end(root)
}

/// Starts an archive with what both roots have in common.
fn begin(archive: &Path, content: &Content<'_>) -> Result<Root> {
    let file = File::create(archive)?;
    let mut root = Archive::new(BufWriter::new(file));
    for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        root.directory(target)?;
        root.symlink(link, target)?;
    }
    for directory in ["new", "root", "dev", "proc", "sys"] {
        root.directory(directory)?;
    }
    for file in content.tools.files()? {
        add(&mut root, &file.source, &file.path)?;
    }
    root.character_device("dev/console", 5, 1)?;
    let mut order = String::new();
    for module in &content.kernel.modules {
        let name = file_name(module)?;
        add(&mut root, module, &format!("usr/lib/modules/{name}"))?;
        order += &format!("{name}\n");
    }
    root.file("etc/modules", 0o644, order.as_bytes())?;
    Ok(root)
}

/// Adds a link for each busybox applet whose name is still free, and completes the archive.
fn end(mut root: Root) -> Result<()> {
    for applet in capture(command("busybox").arg("--list-full"))?.lines() {
        let name = file_name(Path::new(applet))?;
        let (directory, other) = if applet.contains("sbin") { ("sbin", "bin") } else { ("bin", "sbin") };
        if !root.contains(&format!("usr/{other}/{name}")) {
            root.symlink(&format!("usr/{directory}/{name}"), "/usr/bin/busybox")?;
        }
    }
    Ok(root.finish().map(drop)?)
}

fn add(root: &mut Root, source: &Path, path: &str) -> Result<()> {
    let content = fs::read(source)?;
    let mode = fs::metadata(source)?.permissions().mode() & 0o777;
    Ok(root.file(path, mode, &content)?)
}

fn file_name(path: &Path) -> Result<&str> {
    path.file_name().and_then(|name| name.to_str()).with_context(|| format!("{} has no name", path.display()))
}
