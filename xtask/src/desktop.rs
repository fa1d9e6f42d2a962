//! The machines of cluster operators: macOS and Windows, for which `kubectl bulkhead` is built on Linux, with zig as C
//! compiler and linker.

mod signature;
mod timestamp;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use clap::ValueEnum;
use fs_err as fs;

use crate::directory::make_executable;
use crate::process::run_cargo;
use crate::workspace::{Architecture, Workspace};
use crate::zig::Zig;

/// The plugin: the package, and on Unix the program.
pub const PLUGIN: &str = "kubectl-bulkhead";

/// The oldest macOS that the programs start on: the first for arm64.
const MACOS: &str = "11.0";

/// What stands for the libraries of macOS, of which zig has only libSystem: the names of the symbols that are wanted.
const STUBS: &str = "xtask/src/desktop";

/// A system and a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Desktop {
    /// macOS on Intel's processors.
    DarwinAmd64,
    /// macOS on Apple's processors.
    DarwinArm64,
    /// Windows.
    WindowsAmd64,
}

impl Desktop {
    /// Those with one of these processors.
    pub fn with(architectures: &[Architecture]) -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied().filter(|desktop| architectures.contains(&desktop.architecture()))
    }

    /// The processor.
    pub fn architecture(self) -> Architecture {
        if self == Desktop::DarwinArm64 { Architecture::Arm64 } else { Architecture::Amd64 }
    }

    /// Returns whether it is Windows, where little is as on Unix.
    pub fn is_windows(self) -> bool {
        self == Desktop::WindowsAmd64
    }

    /// Returns what kubectl and krew call the system.
    pub fn system(self) -> &'static str {
        if self.is_windows() { "windows" } else { "darwin" }
    }

    /// System and processor, as in the names of archives.
    pub fn name(self) -> String {
        format!("{}-{}", self.system(), self.architecture().debian())
    }

    /// Rust's target triple.
    pub fn triple(self) -> &'static str {
        match self {
            Desktop::DarwinAmd64 => "x86_64-apple-darwin",
            Desktop::DarwinArm64 => "aarch64-apple-darwin",
            Desktop::WindowsAmd64 => "x86_64-pc-windows-gnullvm",
        }
    }

    /// The file that the plugin is in.
    pub fn program(self) -> String {
        if self.is_windows() { format!("{PLUGIN}.exe") } else { PLUGIN.to_owned() }
    }

    /// Returns what zig calls it.
    pub fn zig(self) -> String {
        let system = if self.is_windows() { "windows-gnu".to_owned() } else { format!("macos.{MACOS}") };
        format!("{}-{system}", self.architecture().name())
    }

    /// Builds the plugin as it is shipped, and returns its path.
    ///
    /// A program for Apple's processors whose signature does not fit is an error. Intel's start programs without one.
    pub fn build(self, workspace: &Workspace, zig: &Zig) -> Result<PathBuf> {
        let mut build = workspace.release_build_for(self.triple())?;
        build.args(["--package", PLUGIN, "--bin", PLUGIN]);
        self.use_zig(&mut build, workspace, zig)?;
        run_cargo(&mut build)?;
        let plugin = workspace.target.join(self.triple()).join("release").join(self.program());
        match self {
            Desktop::DarwinAmd64 => {}
            Desktop::DarwinArm64 => {
                signature::verify(&fs::read(&plugin)?).with_context(|| format!("would {} start?", plugin.display()))?;
            }
            Desktop::WindowsAmd64 => {
                let mut content = fs::read(&plugin)?;
                timestamp::clear(&mut content).with_context(|| format!("clear the time in {}", plugin.display()))?;
                fs::write(&plugin, content)?;
            }
        }
        Ok(plugin)
    }

    /// Has cargo and the build scripts of crates call zig.
    fn use_zig(self, build: &mut Command, workspace: &Workspace, zig: &Zig) -> Result<()> {
        let directory = workspace.target.join("zig");
        fs::create_dir_all(&directory)?;
        let compiler = directory.join(format!("cc-{}", self.triple()));
        write_program(&compiler, &self.compiler(&zig.program(), &workspace.root.join(STUBS)))?;
        let archiver = directory.join("ar");
        write_program(&archiver, &format!("#!/bin/sh\nexec '{}' ar \"$@\"\n", zig.program().display()))?;
        let variable = self.triple().replace('-', "_");
        build.env(format!("CC_{variable}"), &compiler).env(format!("AR_{variable}"), &archiver);
        build.env(format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()), &compiler);
        build.envs(zig.environment());
        // rustc would ask Xcode where it is, but passes it on to nobody.
        build.env("MACOSX_DEPLOYMENT_TARGET", MACOS).env("SDKROOT", workspace.root.join(STUBS));
        Ok(())
    }

    /// The script that is called as compiler and as linker. The names that rustc and build scripts have for the target
    /// are not zig's. Where the stubs are is said here, because programs differ by the arguments that rustc is called with.
    fn compiler(self, zig: &Path, stubs: &Path) -> String {
        let (zig, target, stubs) = (zig.display(), self.zig(), stubs.display());
        let (dropped, stubs) = match self {
            Desktop::DarwinAmd64 | Desktop::DarwinArm64 => {
                ("-mmacosx-version-min=*", format!("-L'{stubs}' -F'{stubs}' -Wno-unused-command-line-argument "))
            }
            // zig has its own C library, with another name, and its own functions for what processors lack.
            Desktop::WindowsAmd64 => {
                ("-nolibc | -lmsvcrt | -lmingw32 | -lmingwex | */libcompiler_builtins-*", String::new())
            }
        };
        format!(
            "#!/bin/sh\n\
             for argument; do\n    \
                 shift\n    \
                 case \"$argument\" in\n        \
                     --target=* | {dropped}) ;;\n        \
                     *) set -- \"$@\" \"$argument\" ;;\n    \
                 esac\n\
             done\n\
             exec '{zig}' cc -target {target} {stubs}\"$@\"\n"
        )
    }
}

fn write_program(path: &Path, script: &str) -> Result<()> {
    fs::write(path, script)?;
    make_executable(path)
}
