//! Packages that are installed in the machine and never on this host.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use fs_err::{self as fs, File};

use crate::packages;
use crate::process::{command, run_quietly};
use crate::progress::timed;
use crate::workspace::Architecture;

/// Debian's archive, and the keys that its suites are signed with.
const ARCHIVE: &str = "http://deb.debian.org/debian";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The name of a private list of sources.
const SOURCES_LIST: &str = "sources.list";

/// A view of package sources.
pub struct Apt {
    architecture: Architecture,
    /// Lists and archives that the host's own apt must not see: for another architecture, or of another suite.
    private: Option<PathBuf>,
    /// The suite of Debian's archive that is the only source, in place of those that this host is set up for.
    suite: Option<&'static str>,
}

impl Apt {
    /// The sources as configured on this host, or one suite of Debian's archive, whatever this host is set up for. A suite,
    /// and another architecture, have separate lists in the cache.
    pub fn new(cache: &Path, architecture: Architecture, suite: Option<&'static str>) -> Self {
        let is_private = suite.is_some() || architecture != Architecture::host();
        let suffix = suite.map(|suite| format!("-{suite}")).unwrap_or_default();
        let private = is_private.then(|| cache.join(format!("apt{suffix}-{}", architecture.debian())));
        Apt { architecture, private, suite }
    }

    /// Debian's name for the architecture of these packages.
    pub fn architecture(&self) -> &'static str {
        self.architecture.debian()
    }

    /// The package that contains the kernel itself: the one that a metapackage depends on, or the given package. `None`
    /// if no source has it.
    pub fn resolve_image(&self, package: &str) -> Result<Option<String>> {
        self.prepare()?;
        let output = self.command("apt-cache").args(["show", "--no-all-versions", package]).output()?;
        if !output.status.success() {
            return Ok(None);
        }
        let record = String::from_utf8_lossy(&output.stdout).into_owned();
        let depends = record.lines().find_map(|line| line.strip_prefix("Depends: ")).unwrap_or_default();
        let mut names = depends.split(", ").filter_map(|item| item.split_whitespace().next());
        let image = names.find(|name| name.starts_with("linux-image-"));
        Ok(Some(image.unwrap_or(package).to_owned()))
    }

    /// Downloads the archive of one package into a directory and returns its path.
    pub fn download(&self, package: &str, directory: &Path) -> Result<PathBuf> {
        self.fetch(|command| command.args(["download", "-qq", package]).current_dir(directory))?;
        let archive = archives(directory)?.pop();
        archive.with_context(|| format!("apt-get download left no archive of {package} in {}", directory.display()))
    }

    /// Downloads packages with all their dependencies, and returns the paths of the archives.
    pub fn download_with_dependencies(&self, packages: &[&str]) -> Result<Vec<PathBuf>> {
        let directory = self.private.as_ref().context("the host's own packages are not downloaded but installed")?;
        let arguments = ["install", "--download-only", "--yes", "-qq", "--no-install-recommends"];
        self.fetch(|command| command.args(arguments).args(packages))?;
        archives(&directory.join("archives"))
    }

    /// Runs apt-get with these arguments.
    fn fetch(&self, with_arguments: impl Fn(&mut Command) -> &mut Command) -> Result<()> {
        self.prepare()?;
        let attempt = || run_quietly(with_arguments(&mut self.command("apt-get")));
        if let Err(error) = attempt() {
            // Outdated lists name versions that a mirror no longer has.
            self.refresh().context(error)?;
            attempt()?;
        }
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = command(program);
        if let Some(directory) = &self.private {
            for (name, path) in [("State", ""), ("State::status", "status"), ("Cache", "")] {
                command.arg("-o").arg(format!("Dir::{name}={}", directory.join(path).display()));
            }
            for name in ["Architecture", "Architectures"] {
                command.arg("-o").arg(format!("APT::{name}={}", self.architecture()));
            }
            if self.suite.is_some() {
                command.arg("-o").arg(format!("Dir::Etc::sourcelist={}", directory.join(SOURCES_LIST).display()));
                command.arg("-o").arg("Dir::Etc::sourceparts=/dev/null");
            }
        }
        command
    }

    /// Fetches the private lists if there are none yet.
    fn prepare(&self) -> Result<()> {
        match &self.private {
            Some(directory) if !directory.join("status").exists() => {
                fs::create_dir_all(directory.join("lists/partial"))?;
                fs::create_dir_all(directory.join("archives/partial"))?;
                if let Some(suite) = self.suite {
                    let source = format!("deb [signed-by={KEYS}] {ARCHIVE} {suite} main\n");
                    fs::write(directory.join(SOURCES_LIST), source)?;
                }
                let of = self.suite.unwrap_or(self.architecture());
                timed(format_args!("fetching the package lists for {of}"), || {
                    // An empty list of installed packages; that it exists also means that the lists are complete.
                    File::create(directory.join("status"))?;
                    self.refresh().inspect_err(|_| drop(fs::remove_file(directory.join("status"))))
                })
            }
            _ => Ok(()),
        }
    }

    fn refresh(&self) -> Result<()> {
        if self.private.is_some() {
            return run_quietly(self.command("apt-get").args(["update", "-qq"]));
        }
        let is_root = rustix::process::geteuid().is_root();
        ensure!(is_root, "the package lists may be old: run `sudo apt-get update` and try again");
        packages::refresh()
    }
}

fn archives(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "deb"));
    Ok(paths)
}

/// Unpacks the archive of a package into a tree, and removes it.
pub fn unpack(archive: &Path, tree: &Path) -> Result<()> {
    run_quietly(command("dpkg").arg("--extract").args([archive, tree]))?;
    Ok(fs::remove_file(archive)?)
}
