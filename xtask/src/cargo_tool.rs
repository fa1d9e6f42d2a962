//! Tools of the ecosystem, in pinned versions, built from crates.io into a cache of the user's.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cache;
use crate::directory::lock;
use crate::process::{command, run};
use crate::progress::timed;
use crate::workspace::cargo;

/// A tool that cargo runs as a command of its own.
pub struct CargoTool {
    name: &'static str,
    version: &'static str,
}

/// Checks licenses, sources and versions of all crates, and whether any has a known fault.
pub const DENY: CargoTool = CargoTool { name: "cargo-deny", version: "0.20.2" };

/// Changes the code in small ways and looks which changes no test notices.
pub const MUTANTS: CargoTool = CargoTool { name: "cargo-mutants", version: "27.1.0" };

/// Lists the crates of a program for those who look for known faults in them.
pub const CYCLONEDX: CargoTool = CargoTool { name: "cargo-cyclonedx", version: "0.5.9" };

impl CargoTool {
    /// The tool, built unless that is done.
    pub fn command(&self) -> Result<Command> {
        Ok(command(&self.provide()?.to_string_lossy()))
    }

    fn provide(&self) -> Result<PathBuf> {
        let CargoTool { name, version } = self;
        let cache = cache::directory("tools")?;
        let root = cache.join(format!("{name}-{version}"));
        let program = root.join("bin").join(name);
        if program.exists() {
            return Ok(program);
        }
        let _lock = lock(&cache, name)?;
        if !program.exists() {
            let mut install = cargo();
            // Not into the workspace's directory: its programs and the tool's have nothing in common.
            install.env_remove("CARGO_TARGET_DIR");
            install.args(["install", "--quiet", "--locked", "--version", &format!("={version}"), name, "--root"]);
            timed(format_args!("building {name} {version} once"), || run(install.arg(&root)))?;
        }
        Ok(program)
    }
}
