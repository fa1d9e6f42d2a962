//! Tools of the ecosystem, in pinned versions, built from crates.io into a cache of the user.

use std::process::Command;

use anyhow::Result;

use crate::cache;
use crate::process::{command, run};
use crate::progress::timed;
use crate::workspace::cargo;

/// A tool that cargo runs as a subcommand.
pub struct CargoTool {
    name: &'static str,
    version: &'static str,
}

/// Checks the licenses, sources and versions of all crates, and whether any has a known fault.
pub const DENY: CargoTool = CargoTool { name: "cargo-deny", version: "0.20.2" };

/// Makes small changes to the code and reports those that no test notices.
pub const MUTANTS: CargoTool = CargoTool { name: "cargo-mutants", version: "27.1.0" };

/// Builds programs that libFuzzer can observe.
pub const FUZZ: CargoTool = CargoTool { name: "cargo-fuzz", version: "0.13.2" };

/// Lists the crates of a program, for anyone who checks them for known faults.
pub const CYCLONEDX: CargoTool = CargoTool { name: "cargo-cyclonedx", version: "0.5.9" };

impl CargoTool {
    /// The command that runs the tool, which is built if it is not in the cache.
    pub fn command(&self) -> Result<Command> {
        let CargoTool { name, version } = self;
        let root = cache::make_once(cache::directory("tools")?.join(format!("{name}-{version}")), |root| {
            let mut install = cargo();
            // Not the workspace's target directory: its programs and the tool have nothing in common.
            install.env_remove("CARGO_TARGET_DIR");
            install.args(["install", "--quiet", "--locked", "--version", &format!("={version}"), name, "--root"]);
            timed(format_args!("building {name} {version} once"), || run(install.arg(root)))
        })?;
        Ok(command(root.join("bin").join(name)))
    }
}
