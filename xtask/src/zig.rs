//! zig: a C compiler and a linker, with the libraries to link against, for systems that Debian has neither for. It is
//! published as a Python package, which pip unpacks into the cache: nothing of it is run by Python.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err as fs;
use tempfile::NamedTempFile;

use crate::cache;
use crate::packages;
use crate::process::{command, run_quietly};
use crate::progress::timed;

const NAME: &str = "ziglang";
const VERSION: &str = "0.13.0";

/// SHA-256 of what was tested: the wheels for x86_64 and aarch64.
const WHEELS: [&str; 2] = [
    "3ce0c9f16547e5d61b32e0d226926e9a2552ef4b91fccf7ab5ea1a623a77824b",
    "5714a4d46f9246ba6180a0930e23df2bc8bc26e62b5fe0dc798b4afca1903308",
];

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
    let requirement = NamedTempFile::new().context("make a file that tells pip what is wanted")?;
    let hashes = WHEELS.map(|wheel| format!(" --hash=sha256:{wheel}")).concat();
    fs::write(requirement.path(), format!("{NAME}=={VERSION}{hashes}\n"))?;
    let mut pip = command("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--only-binary", ":all:"]);
    run_quietly(pip.arg("--target").arg(root).arg("--requirement").arg(requirement.path()))
}
