//! The cargo workspace: where it is, which programs it has, and how they are built.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::packages;
use crate::process::{capture, run};

/// A processor that the project is built for. Only static musl binaries are shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Architecture {
    /// x86_64.
    #[value(name = "x86_64", alias = "amd64")]
    Amd64,
    /// aarch64.
    #[value(name = "aarch64", alias = "arm64")]
    Arm64,
}

impl Architecture {
    /// The architecture of this very program.
    pub fn host() -> Self {
        if cfg!(target_arch = "aarch64") { Architecture::Arm64 } else { Architecture::Amd64 }
    }

    /// The kernel's and QEMU's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "x86_64",
            Architecture::Arm64 => "aarch64",
        }
    }

    /// Debian's name for it.
    pub fn debian(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        }
    }

    /// Rust's target triple for it.
    pub fn triple(self) -> &'static str {
        match self {
            Architecture::Amd64 => "x86_64-unknown-linux-musl",
            Architecture::Arm64 => "aarch64-unknown-linux-musl",
        }
    }
}

/// How much the compiler optimizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Quick to build.
    Dev,
    /// What is shipped, and what is measured.
    Release,
}

/// The workspace that this program belongs to.
pub struct Workspace {
    /// Its top directory.
    pub root: PathBuf,
    /// Where cargo builds.
    pub target: PathBuf,
    /// Programs that run in the machine, by name, with the package of each.
    programs: BTreeMap<String, String>,
}

impl Workspace {
    /// Asks cargo.
    pub fn load() -> Result<Self> {
        let output = capture(cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
        let metadata: Value = serde_json::from_str(&output).context("parse cargo metadata")?;
        let directory = |name: &str| metadata[name].as_str().map(PathBuf::from).context("cargo metadata lacks paths");
        let mut programs = BTreeMap::new();
        for package in metadata["packages"].as_array().context("cargo metadata lacks packages")? {
            let name = package["name"].as_str().unwrap_or_default();
            for target in package["targets"].as_array().into_iter().flatten() {
                let kinds = target["kind"].as_array().into_iter().flatten();
                if name != env!("CARGO_PKG_NAME") && kinds.into_iter().any(|kind| kind == "bin") {
                    programs.insert(target["name"].as_str().unwrap_or_default().to_owned(), name.to_owned());
                }
            }
        }
        Ok(Workspace { root: directory("workspace_root")?, target: directory("target_directory")?, programs })
    }

    /// Builds every program of the workspace but xtask, and returns where they are.
    pub fn build(&self, architecture: Architecture, profile: Profile) -> Result<Vec<PathBuf>> {
        self.build_packages(self.programs.values().map(String::as_str).collect(), architecture, profile)?;
        self.built(architecture, profile)
    }

    /// Builds the programs of some packages.
    pub fn build_packages(&self, packages: BTreeSet<&str>, architecture: Architecture, profile: Profile) -> Result<()> {
        packages::require_target(architecture.triple())?;
        packages::require_compiler(architecture)?;
        let mut build = cargo();
        build.current_dir(&self.root).args(["build", "--bins", "--target", architecture.triple()]);
        for package in packages {
            build.args(["--package", package]);
        }
        if profile == Profile::Release {
            build.arg("--release");
        }
        run(&mut build)
    }

    /// The programs as an earlier build left them.
    pub fn built(&self, architecture: Architecture, profile: Profile) -> Result<Vec<PathBuf>> {
        let paths: Vec<PathBuf> = self.programs.keys().map(|name| self.program(name, architecture, profile)).collect();
        let present: Vec<PathBuf> = paths.into_iter().filter(|path| path.exists()).collect();
        ensure!(!present.is_empty(), "nothing is built yet for {}", architecture.triple());
        Ok(present)
    }

    /// Where cargo puts a program.
    pub fn program(&self, name: &str, architecture: Architecture, profile: Profile) -> PathBuf {
        let directory = match profile {
            Profile::Dev => "debug",
            Profile::Release => "release",
        };
        self.target.join(architecture.triple()).join(directory).join(name)
    }

    /// Whether the workspace has a program of this name.
    pub fn has_program(&self, name: &str) -> bool {
        self.programs.contains_key(name)
    }

    /// Where the machine's parts are kept.
    pub fn machine_cache(&self) -> PathBuf {
        self.target.join("vm")
    }
}

/// The cargo that runs us.
pub fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    if let Some(root) = Path::new(env!("CARGO_MANIFEST_DIR")).parent() {
        command.current_dir(root);
    }
    command
}
