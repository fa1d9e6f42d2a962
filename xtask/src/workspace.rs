//! The cargo workspace: where it is, which programs it contains, and how they are built.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::{Message, MetadataCommand, PackageId, Target};

use crate::cache;
use crate::packages;
use crate::process::{capture, command, output, run_cargo};

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
    /// All of them.
    pub const ALL: [Architecture; 2] = [Architecture::Amd64, Architecture::Arm64];

    /// The architecture of the running program.
    pub fn host() -> Self {
        if cfg!(target_arch = "aarch64") { Architecture::Arm64 } else { Architecture::Amd64 }
    }

    /// The other one.
    pub fn other(self) -> Self {
        if self == Architecture::Amd64 { Architecture::Arm64 } else { Architecture::Amd64 }
    }

    /// The kernel's and QEMU's name for it.
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// Debian's name for it.
    pub fn debian(self) -> &'static str {
        self.names().1
    }

    /// Rust's target triple for it.
    pub fn triple(self) -> &'static str {
        self.names().2
    }

    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Architecture::Amd64 => ("x86_64", "amd64", "x86_64-unknown-linux-musl"),
            Architecture::Arm64 => ("aarch64", "arm64", "aarch64-unknown-linux-musl"),
        }
    }
}

/// How much the compiler optimizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Quick to build.
    Dev,
    /// As shipped and measured.
    Release,
}

/// Which programs a build makes.
#[derive(Clone, Copy, Debug)]
pub enum Selection {
    /// The shipped programs, with the features they are shipped with.
    Shipped,
    /// Only these.
    Only(&'static [&'static str]),
    /// The shipped programs, and these as well.
    ShippedWith(&'static [&'static str]),
    /// All programs except xtask.
    All,
}

/// The names of the workspace, and of the directory it is built in, as they appear in released programs.
const BUILD: &str = "/bulkhead";
const BUILD_TARGET: &str = "/bulkhead/target";

/// The packages whose programs are shipped.
const SHIPPED: [&str; 4] = ["bulkhead-frontend", "bulkhead-privhelper", "bulkheadctl", "kubectl-bulkhead"];

/// A program that contains the unit tests of a library or a program, or a file of tests.
#[derive(Clone, Debug)]
pub struct TestProgram {
    /// The package that it tests.
    pub package: String,
    /// Its name in reports.
    pub name: String,
    /// Its path.
    pub path: PathBuf,
    /// The package's directory, in which cargo runs it.
    pub directory: PathBuf,
}

/// The result of a build for the tests.
#[derive(Debug, Default)]
pub struct BuiltTests {
    /// Programs under test, and suites.
    pub programs: Vec<PathBuf>,
    /// Programs with unit tests.
    pub unit_tests: Vec<TestProgram>,
}

/// The workspace that contains this program, or a copy of it elsewhere.
#[derive(Clone)]
pub struct Workspace {
    /// Its top directory.
    pub root: PathBuf,
    /// Where cargo builds.
    pub target: PathBuf,
    /// Programs by name, each with its package; this program is left out.
    programs: BTreeMap<String, String>,
    /// The names of packages.
    packages: BTreeMap<PackageId, String>,
}

impl Workspace {
    /// Loads it by asking cargo.
    pub fn load() -> Result<Self> {
        Self::described(&mut cargo())
    }

    /// That of another commit, whose source is in `root`. It is built there too.
    pub fn of_source(root: &Path) -> Result<Self> {
        Ok(Self::described(cargo().current_dir(root))?.with_target(root.join("target")))
    }

    fn described(cargo: &mut Command) -> Result<Self> {
        let output = capture(cargo.args(["metadata", "--locked", "--no-deps", "--format-version=1"]))?;
        let metadata = MetadataCommand::parse(output)?;
        let (mut programs, mut packages) = (BTreeMap::new(), BTreeMap::new());
        for package in metadata.packages {
            if package.name != env!("CARGO_PKG_NAME") {
                let targets = package.targets.into_iter().filter(Target::is_bin);
                programs.extend(targets.map(|target| (target.name, package.name.to_string())));
            }
            packages.insert(package.id, package.name.to_string());
        }
        let [root, target] = [metadata.workspace_root, metadata.target_directory].map(PathBuf::from);
        Ok(Workspace { root, target, programs, packages })
    }

    /// A copy of the workspace, with a target directory of its own.
    pub fn copied_to(&self, root: &Path) -> Self {
        Workspace { root: root.to_owned(), target: root.join("target"), ..self.clone() }
    }

    /// The same workspace, built into another directory.
    pub fn with_target(&self, target: PathBuf) -> Self {
        Workspace { target, ..self.clone() }
    }

    /// A git command about the source.
    pub fn git(&self, arguments: &[&str]) -> Command {
        let mut git = command("git");
        git.current_dir(&self.root).args(arguments);
        git
    }

    /// Builds programs and returns their paths.
    pub fn build(&self, selection: Selection, architecture: Architecture, profile: Profile) -> Result<Vec<PathBuf>> {
        let names = self.selected(selection)?;
        let packages: BTreeSet<&String> = names.iter().filter_map(|name| self.programs.get(*name)).collect();
        // Packages that are built together share their dependencies, with the union of the features they ask for. A
        // shipped program, above all the helper, gets only the features it asks for itself.
        let together: Vec<BTreeSet<&String>> = match profile {
            Profile::Dev => vec![packages],
            Profile::Release => packages.into_iter().map(|package| BTreeSet::from([package])).collect(),
        };
        for packages in together {
            let mut build = self.cargo_build(architecture, profile)?;
            for package in &packages {
                build.args(["--package", package]);
            }
            for name in names.iter().filter(|name| self.programs.get(**name).is_some_and(|of| packages.contains(of))) {
                build.args(["--bin", name]);
            }
            run_cargo(&mut build)?;
        }
        Ok(names.iter().map(|name| self.program(name, architecture, profile)).collect())
    }

    /// Builds all programs and all unit tests for this host at once: a crate that both use is compiled only once if a
    /// single build sees the features that either asks for.
    pub fn build_tests(&self) -> Result<BuiltTests> {
        let mut build = self.cargo_build(Architecture::host(), Profile::Dev)?;
        build.args(["--workspace", "--bins", "--tests", "--message-format=json-render-diagnostics"]);
        let output = output(&mut build, Stdio::inherit())?;
        let mut built = BuiltTests::default();
        for message in Message::parse_stream(output.as_bytes()) {
            let Message::CompilerArtifact(artifact) = message? else { continue };
            let Some(path) = artifact.executable.map(PathBuf::from) else { continue };
            if artifact.profile.test {
                let directory = artifact.manifest_path.parent().context("a manifest in no directory")?.into();
                let package = self.packages.get(&artifact.package_id).context("a program of no package")?.clone();
                let name = artifact.target.name;
                let is_main = name.replace('_', "-") == package;
                let name = if is_main { package.clone() } else { format!("{package}: {name}") };
                built.unit_tests.push(TestProgram { package, name, path, directory });
            } else if self.programs.contains_key(&artifact.target.name) && artifact.target.is_bin() {
                built.programs.push(path);
            }
        }
        Ok(built)
    }

    /// A build that must not change Cargo.lock.
    fn cargo_build(&self, architecture: Architecture, profile: Profile) -> Result<Command> {
        packages::require_compiler(architecture)?;
        match profile {
            Profile::Dev => self.build_for(architecture.triple()),
            Profile::Release => self.release_build_for(architecture.triple()),
        }
    }

    /// The same for any target, optimized. Its compiler for the parts in C is the caller's concern.
    pub fn release_build_for(&self, triple: &str) -> Result<Command> {
        let mut build = self.build_for(triple)?;
        build.arg("--release").env("CARGO_ENCODED_RUSTFLAGS", self.remapping()?);
        Ok(build)
    }

    fn build_for(&self, triple: &str) -> Result<Command> {
        packages::require_target(triple)?;
        let mut build = cargo();
        build.current_dir(&self.root).args(["build", "--locked", "--target", triple]);
        build.arg("--target-dir").arg(&self.target);
        Ok(build)
    }

    /// Compiler arguments that make a program independent of where it was built: it contains the paths of source files,
    /// for panic messages. If two arguments match a path, the later one applies.
    fn remapping(&self) -> Result<String> {
        let places = [(&cargo_home()?, "/cargo"), (&self.root, BUILD), (&self.target, BUILD_TARGET)];
        Ok(places.map(|(place, name)| format!("--remap-path-prefix={}={name}", place.display())).join("\u{1f}"))
    }

    fn selected(&self, selection: Selection) -> Result<Vec<&str>> {
        let (all, shipped, more): (bool, bool, &[&str]) = match selection {
            Selection::Shipped => (false, true, &[]),
            Selection::Only(names) => (false, false, names),
            Selection::ShippedWith(names) => (false, true, names),
            Selection::All => (true, true, &[]),
        };
        for name in more {
            ensure!(self.programs.contains_key(*name), "the workspace has no program {name}");
        }
        let wanted = |name: &str, package: &str| all || shipped && SHIPPED.contains(&package) || more.contains(&name);
        let programs = self.programs.iter().filter(|(name, package)| wanted(name, package));
        Ok(programs.map(|(name, _)| name.as_str()).collect())
    }

    /// The programs that an earlier build left.
    pub fn built(&self, selection: Selection, architecture: Architecture, profile: Profile) -> Result<Vec<PathBuf>> {
        let names = self.selected(selection)?;
        let paths = names.iter().map(|name| self.program(name, architecture, profile));
        let present: Vec<PathBuf> = paths.filter(|path| path.exists()).collect();
        ensure!(!present.is_empty(), "nothing is built yet for {}", architecture.triple());
        Ok(present)
    }

    /// Returns where cargo puts a program.
    pub fn program(&self, name: &str, architecture: Architecture, profile: Profile) -> PathBuf {
        let directory = match profile {
            Profile::Dev => "debug",
            Profile::Release => "release",
        };
        self.target.join(architecture.triple()).join(directory).join(name)
    }

    /// Returns where the machine's parts are kept, shared by all checkouts.
    pub fn machine_cache(&self) -> Result<PathBuf> {
        cache::directory("machine")
    }

    /// Returns where each run creates its directories.
    pub fn runs(&self) -> PathBuf {
        self.target.join("vm")
    }
}

/// Returns where cargo keeps the sources of crates.
pub fn cargo_home() -> Result<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
    home.context("neither CARGO_HOME nor HOME says where cargo keeps the source of crates: set one of them")
}

/// The cargo that is running us.
pub fn cargo() -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    if let Some(root) = Path::new(env!("CARGO_MANIFEST_DIR")).parent() {
        command.current_dir(root);
    }
    command
}
