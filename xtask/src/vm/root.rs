//! What the kernel unpacks as its first root, in one archive that is written anew for every machine, so that it always
//! has the programs just built.
//!
//! The small node lives in it: busybox, modules, some tools of the host with their libraries. The whole Debian is
//! only started from it.

use std::fs::{self, File};
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::cpio::Archive;
use super::kernel::Kernel;
use crate::process::{capture, command};

/// Tools that busybox lacks or does differently, by the package of the host that has them.
const TOOLS: [(&str, &str); 5] = [
    ("dash", "dash"),
    ("e2fsprogs", "chattr debugfs e2fsck lsattr mkfs.ext4 resize2fs tune2fs"),
    ("mount", "losetup mount umount"),
    ("util-linux", "blockdev fallocate findmnt flock lsblk nsenter prlimit setpriv unshare"),
    ("xfsprogs", "mkfs.xfs xfs_growfs xfs_io xfs_quota xfs_repair"),
];

/// Where the machine has our programs.
const PROGRAMS: &str = "opt/bulkhead/bin";

const HOSTS: &[u8] = b"127.0.0.1 localhost node\n";

type Root = Archive<BufWriter<File>>;

/// The host's packages that the root is made from.
pub fn packages() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().map(|(package, _)| *package).chain(["busybox-static"])
}

/// Writes the root of the small node.
pub fn write_node(archive: &Path, kernel: &Kernel, programs: &[PathBuf], fstab: &str) -> Result<()> {
    let mut root = begin(archive, kernel)?;
    root.file("init", 0o755, include_bytes!("guest/init"))?;
    root.file("etc/inittab", 0o644, include_bytes!("guest/inittab"))?;
    root.file("etc/start", 0o755, include_bytes!("guest/start"))?;
    root.file("etc/stop", 0o755, include_bytes!("guest/stop"))?;
    root.file("etc/fstab", 0o644, fstab.as_bytes())?;
    root.file("etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")?;
    root.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    root.file("etc/hosts", 0o644, HOSTS)?;
    root.symlink("etc/mtab", "/proc/self/mounts")?;
    for tool in TOOLS.iter().flat_map(|(_, tools)| tools.split(' ')) {
        add_tool(&mut root, tool)?;
    }
    // Debian's busybox shell prefers its own applets to the programs in the PATH.
    root.symlink("usr/bin/sh", "dash")?;
    add_programs(&mut root, "", programs)?;
    end(root)
}

/// Writes the root that starts the whole Debian from its disk.
pub fn write_debian(archive: &Path, kernel: &Kernel, programs: &[PathBuf], fstab: &str) -> Result<()> {
    let mut root = begin(archive, kernel)?;
    root.file("init", 0o755, include_bytes!("guest/init-debian"))?;
    root.file("overlay/etc/fstab", 0o644, fstab.as_bytes())?;
    root.file("overlay/etc/hostname", 0o644, b"node\n")?;
    root.file("overlay/etc/hosts", 0o644, HOSTS)?;
    // A known identity is no first boot, at which systemd would set all units up anew.
    root.file("overlay/etc/machine-id", 0o444, b"b01c4ead00000000000000000000c0de\n")?;
    let units = "overlay/etc/systemd/system";
    root.file(&format!("{units}/bulkhead-vm-agent.service"), 0o644, include_bytes!("guest/agent.service"))?;
    root.symlink(
        &format!("{units}/multi-user.target.wants/bulkhead-vm-agent.service"),
        "../bulkhead-vm-agent.service",
    )?;
    add_programs(&mut root, "overlay/", programs)?;
    end(root)
}

/// What both roots have.
fn begin(archive: &Path, kernel: &Kernel) -> Result<Root> {
    let file = File::create(archive).with_context(|| format!("create {}", archive.display()))?;
    let mut root = Archive::new(BufWriter::new(file));
    for (link, target) in [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")] {
        root.directory(target)?;
        root.symlink(link, target)?;
    }
    for directory in ["new", "root", "dev", "proc", "sys"] {
        root.directory(directory)?;
    }
    root.character_device("dev/console", 5, 1)?;
    let mut order = String::new();
    for module in &kernel.modules {
        let name = file_name(module)?;
        add(&mut root, module, &format!("usr/lib/modules/{name}"))?;
        order += &format!("{name}\n");
    }
    root.file("etc/modules", 0o644, order.as_bytes())?;
    Ok(root)
}

/// Adds busybox, with a link for each applet whose name nothing else has taken, and ends the archive.
fn end(mut root: Root) -> Result<()> {
    add(&mut root, Path::new("/bin/busybox"), "usr/bin/busybox")?;
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

fn add_tool(root: &mut Root, tool: &str) -> Result<()> {
    let directories = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(|directory| Path::new(directory).join(tool));
    let path = directories
        .into_iter()
        .find(|path| path.exists())
        .with_context(|| format!("{tool} is in none of the directories of this system's programs"))?;
    add(root, &path, &in_root(&path)?)?;
    for library in libraries(&path)? {
        add(root, &library, &in_root(&library)?)?;
    }
    Ok(())
}

/// The shared libraries that a program is linked with, its loader included.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // It fails for a script and for a static program: neither needs any.
    let output = command("ldd").arg(program).output()?;
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = listing.split_whitespace().filter(|word| word.starts_with('/') && !word.ends_with(':'));
    Ok(paths.map(PathBuf::from).collect())
}

/// The same path in the machine, where /bin, /sbin and /lib are below /usr.
fn in_root(path: &Path) -> Result<String> {
    let path = path.to_str().context("path is not text")?.trim_start_matches('/');
    Ok(if path.starts_with("usr/") { path.to_owned() } else { format!("usr/{path}") })
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
