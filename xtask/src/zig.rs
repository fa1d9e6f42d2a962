//! zig: a C compiler and a linker, with the libraries to link against, for systems that Debian has neither for. It is
//! published as a Python package, in whose wheel nothing but files is needed: none of it is installed or run by Python.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fs_err as fs;

use crate::cache;
use crate::checksum::sha256;
use crate::directory::{make_executable, run_directory};
use crate::packages;
use crate::process::{command, run_quietly};
use crate::progress::timed;
use crate::workspace::Architecture;

const NAME: &str = "ziglang";
const VERSION: &str = "0.13.0";

/// Returns what PyPI calls a host, and the SHA-256 of the wheel for it.
fn wheel(host: Architecture) -> (&'static str, &'static str) {
    match host {
        Architecture::Amd64 => {
            ("manylinux_2_12_x86_64", "3ce0c9f16547e5d61b32e0d226926e9a2552ef4b91fccf7ab5ea1a623a77824b")
        }
        Architecture::Arm64 => {
            ("manylinux2014_aarch64", "5714a4d46f9246ba6180a0930e23df2bc8bc26e62b5fe0dc798b4afca1903308")
        }
    }
}

/// Where zig is, and where it may keep what it compiles.
pub struct Zig {
    root: PathBuf,
}

impl Zig {
    /// Downloads it unless it is in the cache.
    pub fn provide() -> Result<Self> {
        let root = cache::make_once(cache::directory("tools")?.join(format!("zig-{VERSION}")), |root| {
            timed(format_args!("downloading zig {VERSION} once: 80 MiB"), || download(root))
        })?;
        Ok(Zig { root })
    }

    /// The program.
    pub fn program(&self) -> PathBuf {
        self.root.join(NAME).join("zig")
    }

    /// The variables that whoever calls it has to set: where it keeps the parts of C libraries that it compiles when they
    /// are first linked.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"].map(|variable| (variable, self.root.join("cache")))
    }
}

fn download(root: &Path) -> Result<()> {
    if run_quietly(command("python3").args(["-m", "pip", "--version"])).is_err() {
        packages::require(&["python3-pip"])?;
    }
    let (platform, expected) = wheel(Architecture::host());
    let scratch = run_directory(&cache::directory("tools")?)?;
    let mut pip = command("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--platform", platform]);
    run_quietly(pip.arg("--dest").arg(scratch.path()).arg(format!("{NAME}=={VERSION}")))?;
    let wheel = fs::read_dir(scratch.path())?.next().context("pip has downloaded nothing")??.path();
    let found = sha256(&fs::read(&wheel)?);
    ensure!(
        found == expected,
        "zig {VERSION} has the checksum {found} instead of {expected}: it is not what was tested"
    );
    run_quietly(command("python3").args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(root))?;
    make_executable(&root.join(NAME).join("zig"))
}
