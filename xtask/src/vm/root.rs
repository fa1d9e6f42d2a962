//! What the kernel unpacks as its first root: one archive, written anew for every machine, so that it always contains
//! the programs just built.
//!
//! The small node keeps it as its root: busybox, modules, some tools of the host with their libraries. The complete
//! Debian is only started from it.

use std::fs::{self, File};
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cpio::Archive;
use super::kernel::Kernel;
use super::node::Node;
use super::tools::Tools;
use crate::process::{capture, command};

/// Where our programs are in the machine.
const PROGRAMS: &str = "opt/bulkhead/bin";

const HOSTS: &[u8] = b"127.0.0.1 localhost node\n";

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

/// Writes the root of the small machine.
pub fn write_small(archive: &Path, content: &Content<'_>) -> Result<()> {
    let mut root = begin(archive, content)?;
    root.file("init", 0o755, include_bytes!("guest/init"))?;
    root.file("etc/inittab", 0o644, include_bytes!("guest/inittab"))?;
    root.file("etc/start", 0o755, include_bytes!("guest/start"))?;
    root.file("etc/stop", 0o755, include_bytes!("guest/stop"))?;
    root.file("etc/fstab", 0o644, content.fstab.as_bytes())?;
    root.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")?;
    root.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    root.file("etc/hosts", 0o644, HOSTS)?;
    root.symlink("etc/mtab", "/proc/self/mounts")?;
    // The shell of Debian's busybox prefers its own applets to the programs in the PATH.
    root.symlink("usr/bin/sh", "dash")?;
    add_programs(&mut root, "", content.programs)?;
    end(root)
}

/// Writes the root that starts the complete Debian from its disk, as a Kubernetes node if `node` is given.
pub fn write_debian(archive: &Path, content: &Content<'_>, node: Option<&Node>) -> Result<()> {
    let mut root = begin(archive, content)?;
    root.file("init", 0o755, include_bytes!("guest/init-debian"))?;
    root.file("overlay/etc/fstab", 0o644, content.fstab.as_bytes())?;
    root.file("overlay/etc/hostname", 0o644, b"node\n")?;
    root.file("overlay/etc/hosts", 0o644, HOSTS)?;
    // With a known identity this is not a first boot, in which systemd would set up all units again.
    root.file("overlay/etc/machine-id", 0o444, b"b01c4ead00000000000000000000c0de\n")?;
    let units = "overlay/etc/systemd/system";
    root.file(&format!("{units}/bulkhead-vm-agent.service"), 0o644, include_bytes!("guest/agent.service"))?;
    root.symlink(
        &format!("{units}/multi-user.target.wants/bulkhead-vm-agent.service"),
        "../bulkhead-vm-agent.service",
    )?;
    add_programs(&mut root, "overlay/", content.programs)?;
    if let Some(node) = node {
        node.add_files(&mut root, content.kernel)?;
    }
    end(root)
}

/// Starts an archive with what both roots have in common.
fn begin(archive: &Path, content: &Content<'_>) -> Result<Root> {
    let file = File::create(archive).with_context(|| format!("create {}", archive.display()))?;
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
    root.finish()?;
    Ok(())
}

fn add_programs(root: &mut Root, prefix: &str, programs: &[PathBuf]) -> Result<()> {
    for program in programs {
        add(root, program, &format!("{prefix}{PROGRAMS}/{}", file_name(program)?))?;
    }
    Ok(())
}

fn add(root: &mut Root, source: &Path, path: &str) -> Result<()> {
    let content = fs::read(source).with_context(|| format!("read {}", source.display()))?;
    let mode = fs::metadata(source)?.permissions().mode() & 0o777;
    root.file(path, mode, &content)?;
    Ok(())
}

fn file_name(path: &Path) -> Result<&str> {
    path.file_name().and_then(|name| name.to_str()).with_context(|| format!("{} has no name", path.display()))
}
