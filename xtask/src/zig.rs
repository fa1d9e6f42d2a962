//! zig: a C compiler and a linker, with the libraries to link against, for systems that Debian has neither for. It is
//! published as a Python package, in whose wheel nothing but files is needed: none of it is installed or run by Python.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::cache;
use crate::checksum::sha256;
use crate::directory::{RunDirectory, lock};
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
        let cache = cache::directory("tools")?;
        let zig = Zig { root: cache.join(format!("zig-{VERSION}")) };
        let _lock = lock(&cache, NAME)?;
        if !zig.root.exists() {
            timed(format_args!("downloading zig {VERSION} once: 80 MiB"), || download(&cache, &zig.root))?;
        }
        Ok(zig)
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

fn download(cache: &Path, root: &Path) -> Result<()> {
    if run_quietly(command("python3").args(["-m", "pip", "--version"])).is_err() {
        packages::require(&["python3-pip"])?;
    }
    let (platform, expected) = wheel(Architecture::host());
    let scratch = RunDirectory::new(cache)?;
    let mut pip = command("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--platform", platform]);
    run_quietly(pip.arg("--dest").arg(scratch.path()).arg(format!("{NAME}=={VERSION}")))?;
    let wheel = fs::read_dir(scratch.path())?.next().context("pip has downloaded nothing")??.path();
    let found = sha256(&fs::read(&wheel).with_context(|| format!("read {}", wheel.display()))?);
    ensure!(
        found == expected,
        "zig {VERSION} has the checksum {found} instead of {expected}: it is not what was tested"
    );
    let unpacked = scratch.path().join("unpacked");
    run_quietly(command("python3").args(["-m", "zipfile", "--extract"]).arg(&wheel).arg(&unpacked))?;
    let program = unpacked.join(NAME).join("zig");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("make {} executable", program.display()))?;
    // Only what is complete gets the final name.
    fs::rename(&unpacked, root).with_context(|| format!("install {}", root.display()))
}
