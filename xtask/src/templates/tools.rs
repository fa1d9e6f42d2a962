//! mkfs.xfs and xfs_db, from one version of Debian's package, whatever this host has installed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fs_err as fs;

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

/// The tree with the programs, from the cache; or the package is downloaded, compared with its checksum and unpacked.
pub fn provide(workspace: &Workspace) -> Result<PathBuf> {
    // For the libraries.
    packages::require(&["xfsprogs"])?;
    cache::make_once(cache::directory("xfsprogs")?.join(VERSION), |tree| {
        timed(format_args!("downloading xfsprogs {VERSION}"), || download(workspace, tree))
    })
}

fn download(workspace: &Workspace, tree: &Path) -> Result<()> {
    let directory = run_directory(&workspace.runs())?;
    let host = Architecture::host();
    let apt = Apt::new(directory.path(), host, None);
    let archive = apt
        .download(&format!("xfsprogs={VERSION}"), directory.path())
        .with_context(|| format!("xfsprogs {VERSION} is a package of Debian 12"))?;
    let (found, expected) = (sha256(&fs::read(&archive)?), checksum(host));
    ensure!(found == expected, "the package xfsprogs {VERSION} has the checksum {found} instead of {expected}");
    run_quietly(command("dpkg").arg("--extract").arg(&archive).arg(tree))
}

/// SHA-256 of the package, as Debian's signed list has it.
fn checksum(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Amd64 => "e2d2a60dd29d568b5724b66d9ff864305cec61a15e6ba842079398524e1c5718",
        Architecture::Arm64 => "e3a1089cec0b4143b490582ee316cea4424ec65f86a65c9d38ca74f7c9d46934",
    }
}
