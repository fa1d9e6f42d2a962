//! A Go toolchain that is new enough.
//!
//! A distribution's Go may be too old. Since version 1.21, `go` fetches a newer toolchain from the module proxy,
//! checked against the public checksum database; an older one can fetch that toolchain as if it were a module.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use fs_err as fs;

use crate::directory::make_executable;
use crate::packages;
use crate::process::{capture, command};
use crate::progress::timed;
use crate::workspace::Architecture;

/// The version to fetch when the distribution's is older than [`SELF_UPDATING`].
const TOOLCHAIN: &str = "go1.24.0";

/// The first minor version of Go 1 that fetches the toolchain a module asks for.
const SELF_UPDATING: u32 = 21;

/// Where it may be installed.
const INSTALLED: [&str; 3] = ["go", "/usr/local/go/bin/go", "/usr/lib/go/bin/go"];

/// A `go` command. Whatever it fetches is stored below the cache.
pub fn go(cache: &Path) -> Result<Command> {
    let installed = || INSTALLED.into_iter().find(|program| is_new(program)).map(PathBuf::from);
    let program = match installed() {
        Some(program) => program,
        None => {
            packages::require(&["golang-go", "ca-certificates"])?;
            installed().map_or_else(|| timed(format_args!("fetching {TOOLCHAIN}"), || fetch(cache)), Ok)?
        }
    };
    let mut go = command(program);
    go.env("GOTOOLCHAIN", "auto").env("CGO_ENABLED", "0");
    Ok(go)
}

/// Linker flags that leave out what only a debugger reads.
pub const STRIPPED: &str = "-s -w";

/// A command that builds a program by `go build`, or by another such command; it takes the program's place, and the package.
pub fn build(cache: &Path, how: &[&str], linker_flags: &str) -> Result<Command> {
    let mut build = go(cache)?;
    build.args(how).args(["-trimpath", "-buildvcs=false", "-p", "2", "-ldflags", linker_flags, "-o"]);
    Ok(build)
}

/// The version of a package that a go.mod requires: that of its module.
pub fn version<'m>(go_mod: &'m str, package: &str) -> Option<&'m str> {
    let mut required = go_mod.lines().filter_map(|line| line.trim().trim_start_matches("require ").split_once(' '));
    let is_in =
        |module: &str| package.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let (_, version) = required.find(|(module, version)| is_in(module) && version.starts_with('v'))?;
    version.split(' ').next()
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
        for entry in fs::read_dir(&place)? {
            make_executable(&entry?.path())?;
        }
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_module_says_which_version_it_requires() {
        let text = "tool k8s.io/a/cmd/b\n\nrequire k8s.io/c v1.2.3\nrequire (\n\tk8s.io/a/b v1.0.0\n\tk8s.io/a v2.0.0 // x\n)\n\
                    replace k8s.io/d => k8s.io/d v4.0.0\n";
        assert_eq!(version(text, "k8s.io/c"), Some("v1.2.3"));
        assert_eq!(version(text, "k8s.io/a"), Some("v2.0.0"));
        assert_eq!(version(text, "k8s.io/a/cmd/b"), Some("v2.0.0"));
        assert_eq!(version(text, "k8s.io/a/b/cmd"), Some("v1.0.0"));
        assert_eq!([version(text, "k8s.io"), version(text, "k8s.io/abc"), version(text, "k8s.io/d")], [None; 3]);
    }
}
