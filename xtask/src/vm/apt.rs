//! Packages that go into the machine and never onto this host.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::packages;
use crate::process::{command, run_quietly};
use crate::workspace::Architecture;

/// A view of the configured package sources.
pub struct Apt {
    architecture: Architecture,
}

impl Apt {
    /// The sources as this host knows them.
    pub fn new(architecture: Architecture) -> Self {
        Apt { architecture }
    }

    /// Debian's name of the architecture whose packages these are.
    pub fn architecture(&self) -> &'static str {
        self.architecture.debian()
    }

    /// The package with the kernel itself: the one that a metapackage depends on, or the given one. None when no
    /// source has it.
    pub fn resolve_image(&self, package: &str) -> Result<Option<String>> {
        let Some(record) = self.show(package)? else {
            return Ok(None);
        };
        let depends = record.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
        let mut names = depends.split(", ").filter_map(|item| item.split_whitespace().next());
        let image = names.find(|name| name.starts_with("linux-image-"));
        Ok(Some(image.unwrap_or(package).to_owned()))
    }

    fn show(&self, package: &str) -> Result<Option<String>> {
        let output = command("apt-cache").args(["show", "--no-all-versions", package]).output()?;
        Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// Downloads one package's archive into a directory and returns its path.
    pub fn download(&self, package: &str, directory: &Path) -> Result<PathBuf> {
        let attempt = || run_quietly(command("apt-get").args(["download", "-qq", package]).current_dir(directory));
        if let Err(error) = attempt() {
            if !rustix::process::geteuid().is_root() {
                return Err(error).context("the package lists may be old: run `sudo apt-get update` and try again");
            }
            packages::refresh()?;
            attempt()?;
        }
        let archives = fs::read_dir(directory)?.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let Some(archive) = archives.into_iter().find(|path| path.extension().is_some_and(|ending| ending == "deb"))
        else {
            bail!("apt-get download left no archive of {package} in {}", directory.display());
        };
        Ok(archive)
    }
}
