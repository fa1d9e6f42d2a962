//! Programs from Debian's packages for the small node: busybox, and whatever it lacks or does differently.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use fs_err as fs;

use super::apt::{Apt, unpack};
use super::elf;
use crate::cache;
use crate::progress::timed;
use crate::workspace::Architecture;

/// Packages, each with the programs taken from it.
const TOOLS: [(&str, &str); 10] = [
    ("busybox-static", "busybox"),
    ("coreutils", "cp"),
    ("dash", "dash"),
    ("dmsetup", "dmsetup"),
    ("e2fsprogs", "chattr debugfs e2fsck lsattr mkfs.ext4 resize2fs tune2fs"),
    ("mount", "losetup mount umount"),
    ("perl-base", "perl"),
    ("strace", "strace"),
    ("util-linux", "blockdev fallocate findmnt flock lsblk nsenter prlimit setpriv unshare wipefs"),
    ("xfsprogs", "mkfs.xfs xfs_growfs xfs_io xfs_quota xfs_repair"),
];

/// The packages. Every host needs them, to format the disks and to read busybox's list of applets.
pub fn packages() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().map(|(package, _)| *package)
}

/// Every file that these programs of this host need, including libraries and the loader.
pub fn files_of_host(names: &[&str]) -> Result<Vec<ToolFile>> {
    Tools::of_host().files_of(names.iter().copied())
}

/// A tree that contains the packages' files: the host's own, or one unpacked for another processor.
pub struct Tools {
    tree: PathBuf,
    architecture: Architecture,
}

/// A file for the node: where it is now, and where it goes.
pub struct ToolFile {
    /// On this host.
    pub source: PathBuf,
    /// In the node, relative to its root.
    pub path: String,
}

impl Tools {
    fn of_host() -> Self {
        Tools { tree: PathBuf::from("/"), architecture: Architecture::host() }
    }

    /// Uses the host's files, or downloads the packages for the other architecture and unpacks them in the cache.
    pub fn provide(cache: &Path, architecture: Architecture, apt: &Apt) -> Result<Self> {
        if architecture == Architecture::host() {
            return Ok(Self::of_host());
        }
        let tree = cache::make_once(cache.join(format!("tools-{}", architecture.debian())), |tree| {
            fs::create_dir_all(tree)?;
            timed(format_args!("downloading tools for {}", architecture.debian()), || {
                let archives = apt.download_with_dependencies(&packages().collect::<Vec<_>>())?;
                archives.iter().try_for_each(|archive| unpack(archive, tree))
            })
        })?;
        Ok(Tools { tree, architecture })
    }

    /// Every file that the tools need, including libraries and the loader.
    pub fn files(&self) -> Result<Vec<ToolFile>> {
        self.files_of(TOOLS.iter().flat_map(|(_, names)| names.split(' ')))
    }

    fn files_of<'n>(&self, names: impl Iterator<Item = &'n str>) -> Result<Vec<ToolFile>> {
        let mut wanted: Vec<String> = names.map(String::from).collect();
        let mut files = Vec::new();
        while let Some(name) = wanted.get(files.len()) {
            let file = self.find(name)?;
            // A script is none that needs libraries.
            let mut libraries = elf::needed(&fs::read(&file.source)?).unwrap_or_default();
            libraries.retain(|library| !wanted.contains(library));
            wanted.extend(libraries);
            files.push(file);
        }
        Ok(files)
    }

    /// Finds a program or library by its name or its absolute path. In the node they are all below /usr.
    fn find(&self, name: &str) -> Result<ToolFile> {
        let (directories, name) = match name.strip_prefix('/') {
            Some(path) => (vec![String::new()], path.trim_start_matches("usr/")),
            None => {
                let libraries = format!("lib/{}-linux-gnu/", self.architecture.name());
                (["sbin/", "bin/"].map(String::from).into_iter().chain([libraries]).collect(), name)
            }
        };
        for directory in directories {
            for prefix in ["usr/", ""] {
                let source = self.tree.join(format!("{prefix}{directory}{name}"));
                if source.is_file() {
                    return Ok(ToolFile { source, path: format!("usr/{directory}{name}") });
                }
            }
        }
        bail!("{name} is nowhere below {}", self.tree.display())
    }
}
