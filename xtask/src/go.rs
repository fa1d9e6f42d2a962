//! A Go toolchain that is new enough.
//!
//! A distribution's Go may be too old. Since version 1.21, `go` fetches a newer toolchain from the module proxy,
//! checked against the public checksum database; an older one can fetch that toolchain as if it were a module.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::packages;
use crate::process::{capture, command};
use crate::progress::timed;
use crate::workspace::Architecture;

/// The version to fetch when the distribution's is older than [`SELF_UPDATING`].
const TOOLCHAIN: &str = "go1.24.0";

/// The first minor version of Go 1 that fetches the toolchain a module asks for.
const SELF_UPDATING: u32 = 21;

/// A `go` command. Whatever it fetches is stored below the cache.
pub fn go(cache: &Path) -> Result<Command> {
    let installed = ["go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go"];
    if let Some(program) = installed.into_iter().find(|program| is_new(program)) {
        return Ok(prepared(program.as_ref()));
    }
    packages::require(&["golang-go", "ca-certificates"])?;
    if is_new("go") {
        return Ok(prepared("go".as_ref()));
    }
    let program = timed(format_args!("fetching {TOOLCHAIN}"), || fetch(cache))?;
    Ok(prepared(&program))
}

fn prepared(program: &Path) -> Command {
    let mut go = command(program);
    go.env("GOTOOLCHAIN", "auto").env("CGO_ENABLED", "0");
    go
}

fn is_new(program: &str) -> bool {
    // `go version go1.24.0 linux/amd64`
    let answer = capture(command(program).arg("version")).unwrap_or_default();
    let minor = answer.split_once("go1.").and_then(|(_, rest)| rest.split(['.', ' ', '-']).next()?.parse::<u32>().ok());
    minor.is_some_and(|minor| minor >= SELF_UPDATING)
}

fn fetch(cache: &Path) -> Result<PathBuf> {
    let architecture = Architecture::host().debian();
    let version = format!("v0.0.1-{TOOLCHAIN}.linux-{architecture}");
    let modules = cache.join("go");
    let directory = modules.join(format!("golang.org/toolchain@{version}"));
    let program = directory.join("bin/go");
    fs::create_dir_all(&modules)?;
    let mut download = command("go");
    download.args(["mod", "download", "-modcacherw", &format!("golang.org/toolchain@{version}")]);
    capture(download.current_dir(&modules).env("GOMODCACHE", &modules))?;
    // A module's files are not executable; a toolchain's have to be.
    let tools = directory.join(format!("pkg/tool/linux_{architecture}"));
    for place in [directory.join("bin"), tools] {
        for entry in fs::read_dir(&place).with_context(|| format!("read {}", place.display()))? {
            fs::set_permissions(entry?.path(), Permissions::from_mode(0o755))?;
        }
    }
    Ok(program)
}
