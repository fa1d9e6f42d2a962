//! The kernel of a machine under QEMU: Debian's own, unpacked from its package but not installed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fs_err::{self as fs, File};

use super::apt::{Apt, unpack};
use crate::cache;
use crate::process::{capture, command, run_quietly};
use crate::progress::timed;

/// The modules that the machine needs. Debian's kernels differ in which of them are built in.
const MODULES: [&str; 10] = [
    "virtio_pci", "virtio_blk", "virtio_console", "virtio_net", "ext4", "xfs", "quota_v2", "loop", "overlay", "dm_mod",
];

/// A kernel and its modules.
pub struct Kernel {
    /// The bootable image.
    pub image: PathBuf,
    /// Release, as `uname -r` prints it.
    pub release: String,
    /// Decompressed modules, in load order.
    pub modules: Vec<PathBuf>,
    /// The directory with all modules, as they are in the package. A kernel that has everything built in has none.
    pub library: Option<PathBuf>,
}

impl Kernel {
    /// Takes the kernel from the cache, or downloads it. `wanted` names a kernel package or metapackage.
    pub fn provide(cache: &Path, apt: &Apt, wanted: Option<&str>) -> Result<Self> {
        let architecture = apt.architecture();
        let candidates = match wanted {
            Some(package) => vec![package.to_owned()],
            None => vec![format!("linux-image-6.12-cloud-{architecture}"), format!("linux-image-cloud-{architecture}")],
        };
        // A kernel that is already cached will do: asking for a newer one would make every boot depend on a mirror.
        for candidate in &candidates {
            let directory = cache.join(format!("kernel-{candidate}"));
            if !directory.exists() {
                let Some(package) = apt.resolve_image(candidate)? else { continue };
                cache::make_once(directory.clone(), |directory| {
                    timed(format_args!("downloading kernel {package}"), || Self::download(directory, apt, &package))
                })?;
            }
            return Self::unpacked(&directory);
        }
        bail!("no package source offers {}; a Debian 12 or newer is needed", candidates.join(" or "))
    }

    fn download(directory: &Path, apt: &Apt, package: &str) -> Result<()> {
        let tree = directory.join("tree");
        fs::create_dir_all(&tree)?;
        unpack(&apt.download(package, directory)?, &tree)?;
        let (_, release) = library(&tree)?;
        run_quietly(command("depmod").arg("-b").arg(&tree).arg(&release))
    }

    fn unpacked(directory: &Path) -> Result<Self> {
        let tree = directory.join("tree");
        let (library, release) = library(&tree)?;
        let mut modules = Vec::new();
        for name in MODULES {
            for source in load_order(&tree, &release, name)? {
                let name = source.file_name().and_then(OsStr::to_str).context("module without a name")?;
                let target = directory.join("modules").join(name.trim_end_matches(".xz"));
                let target = cache::make_once(target, |target| decompress(&source, target))?;
                if !modules.contains(&target) {
                    modules.push(target);
                }
            }
        }
        let image = tree.join("boot").join(format!("vmlinuz-{release}"));
        Ok(Kernel { image, release, modules, library: Some(library) })
    }
}

/// The only directory of modules in an unpacked package, and the kernel release it belongs to.
fn library(tree: &Path) -> Result<(PathBuf, String)> {
    for libraries in ["usr/lib/modules", "lib/modules"] {
        if let Some(entry) = fs::read_dir(tree.join(libraries)).ok().and_then(|mut entries| entries.next()) {
            let entry = entry?;
            let release = entry.file_name().into_string().ok().context("kernel release is not text")?;
            return Ok((entry.path(), release));
        }
    }
    bail!("{} holds no kernel modules", tree.display())
}

fn load_order(tree: &Path, release: &str, module: &str) -> Result<Vec<PathBuf>> {
    let listing = capture(
        command("modprobe").args(["--show-depends", "--set-version", release, "--dirname"]).arg(tree).arg(module),
    )?;
    let paths = listing.lines().filter_map(|line| line.strip_prefix("insmod "));
    Ok(paths.filter_map(|rest| rest.split_whitespace().next()).map(PathBuf::from).collect())
}

/// Decompresses once here rather than at each boot in an emulated machine.
fn decompress(source: &Path, target: &Path) -> Result<()> {
    match source.extension().and_then(OsStr::to_str) {
        Some("xz") => {
            run_quietly(command("busybox").arg("xzcat").arg(source).stdout(File::create(target)?.into_file()))
        }
        Some("ko") => Ok(fs::copy(source, target).map(drop)?),
        _ => bail!("{} is compressed in an unknown way", source.display()),
    }
}
