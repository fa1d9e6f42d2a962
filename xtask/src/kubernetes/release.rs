//! Which releases of Kubernetes the tests use: only the Go modules that list their programs say so.

use std::path::PathBuf;

use anyhow::{Context, Result};
use fs_err as fs;

use super::Program;
use crate::cache;
use crate::go::{STRIPPED, build, version};
use crate::process::run;
use crate::progress::timed;
use crate::workspace::{Architecture, Workspace};

/// The directory of the repository that contains the modules.
const MODULES: &str = "tests/control-plane";

/// The directories of the modules for older releases.
const OLDER: [&str; 3] = ["1.36", "1.34", "1.32"];

/// A release that the tests use.
pub struct Release {
    /// The Go module that pins it.
    module: PathBuf,
    /// As shown by `kubectl version`: `v1.37.2`.
    pub version: String,
    /// The release's own toolchain: a later one breaks its API descriptions.
    toolchain: String,
}

impl Release {
    /// The release that everything is tested with.
    pub fn pinned(workspace: &Workspace) -> Result<Self> {
        Self::of(workspace.root.join(MODULES))
    }

    /// Older releases that are also supported, whose API servers do not set the labels that a newer one's does.
    pub fn older(workspace: &Workspace) -> Result<Vec<Self>> {
        OLDER.iter().map(|directory| Self::of(workspace.root.join(MODULES).join(directory))).collect()
    }

    fn of(module: PathBuf) -> Result<Self> {
        let file = module.join("go.mod");
        let text = fs::read_to_string(&file)?;
        let version = version(&text, "k8s.io/kubernetes")
            .with_context(|| format!("{} requires no k8s.io/kubernetes", file.display()))?;
        let toolchain = text.lines().find_map(|line| line.strip_prefix("toolchain "));
        let toolchain = toolchain.with_context(|| format!("{} names no toolchain", file.display()))?;
        Ok(Release { version: version.to_owned(), toolchain: toolchain.to_owned(), module })
    }

    /// Builds the programs that are not in the user's cache yet, and returns the directory that holds them all. The cache
    /// outlives the checkout: building takes some minutes.
    pub fn provide(&self, programs: &[Program]) -> Result<PathBuf> {
        let Release { module, version, toolchain } = self;
        let (cache, architecture) = (cache::directory("kubernetes")?, Architecture::host().debian());
        let directory = cache.join(format!("{version}-{architecture}"));
        for (name, package) in programs {
            cache::make_once(directory.join(name), |program| {
                // Test packages are built with another command.
                let how: &[_] = if name.ends_with(".test") { &["test", "-c", "-vet=off"] } else { &["build"] };
                let mut build = build(&cache, how, &self.linker_flags())
                    .context("Kubernetes is built with Go 1.21 or newer, which fetches the version it needs")?;
                build.arg(program).arg(package).current_dir(module);
                build.env("GOTOOLCHAIN", toolchain).env("GOOS", "linux").env("GOARCH", architecture);
                timed(format_args!("building {name} of Kubernetes {version} once: some minutes"), || run(&mut build))
            })?;
        }
        Ok(directory)
    }

    /// The version for the linker to write into the programs, which would otherwise call themselves v0.0.0.
    fn linker_flags(&self) -> String {
        let mut numbers = self.version.trim_start_matches('v').split('.');
        let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
        let version = &self.version;
        let mut flags = STRIPPED.to_owned();
        for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
            flags += &format!(
                " -X {package}.gitVersion={version} -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
            );
        }
        flags
    }
}
