//! mkfs.xfs and xfs_db, from one version of Debian's package, whatever this host has installed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cache;
use crate::checksum::sha256;
use crate::directory::run_directory;
use crate::packages;
use crate::process::{command, run_quietly};
use crate::progress::timed;
use crate::vm::Apt;
use crate::workspace::{Architecture, Workspace};

/// The version of the package xfsprogs, which Debian 12 has.
pub const VERSION: &str = "6.1.0-1";

/// The programs.
pub struct Tools {
    /// mkfs.xfs.
    pub mkfs: String,
    /// xfs_db.
    pub xfs_db: String,
}

impl Tools {
    /// Uses the cached programs, or downloads the package, compares its checksum and unpacks it.
    pub fn provide(workspace: &Workspace) -> Result<Self> {
        // For the libraries.
        packages::require(&["xfsprogs"])?;
        let cache = cache::directory("xfsprogs")?;
        fs::create_dir_all(&cache)?;
        let _lock = cache::lock(&cache, VERSION)?;
        let tree = cache.join(VERSION);
        if !tree.exists() {
            timed(format_args!("downloading xfsprogs {VERSION}"), || download(workspace, &tree))?;
        }
        let program = |path: &str| tree.join(path).display().to_string();
        Ok(Tools { mkfs: program("sbin/mkfs.xfs"), xfs_db: program("usr/sbin/xfs_db") })
    }
}

fn download(workspace: &Workspace, tree: &Path) -> Result<()> {
    let directory = run_directory(&workspace.runs())?;
    let host = Architecture::host();
    let apt = Apt::new(directory.path(), host)?;
    let archive = apt
        .download(&format!("xfsprogs={VERSION}"), directory.path())
        .with_context(|| format!("xfsprogs {VERSION} is a package of Debian 12"))?;
    let (found, expected) = (sha256(&fs::read(&archive)?), checksum(host));
    ensure!(found == expected, "the package xfsprogs {VERSION} has the checksum {found} instead of {expected}");
    let unpacked = directory.path().join("tree");
    run_quietly(command("dpkg").arg("--extract").args([&archive, &unpacked]))?;
    // Only a complete tree gets the final name; the cache may be on another filesystem.
    let unfinished = tree.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    run_quietly(command("cp").arg("-a").args([&unpacked, &unfinished]))?;
    fs::rename(&unfinished, tree).with_context(|| format!("put {} in place", tree.display()))
}

/// SHA-256 of the package, as Debian's signed list has it.
fn checksum(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Amd64 => "e2d2a60dd29d568b5724b66d9ff864305cec61a15e6ba842079398524e1c5718",
        Architecture::Arm64 => "e3a1089cec0b4143b490582ee316cea4424ec65f86a65c9d38ca74f7c9d46934",
    }
}
