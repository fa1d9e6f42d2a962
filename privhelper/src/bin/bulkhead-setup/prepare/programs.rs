//! The programs of the system that this one runs: wipefs, mkfs.xfs, mount and systemctl.

use std::path::Path;
use std::process::{Command, Output};

/// Where they are found in addition to the caller's path, which of an ordinary user lacks those of root.
const DIRECTORIES: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a program with these arguments, and a path as the last one, and returns what it prints.
///
/// # Errors
/// A sentence with what it says.
pub fn output(program: &'static str, arguments: &[&str], last: &Path) -> Result<String, String> {
    run(program, arguments, &[last])
}

/// Runs a program with these arguments, and paths as the last ones, and returns what it prints.
///
/// # Errors
/// A sentence with what it says.
pub fn run(program: &'static str, arguments: &[&str], last: &[&Path]) -> Result<String, String> {
    let path = match std::env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:{DIRECTORIES}"),
        _ => DIRECTORIES.to_owned(),
    };
    let mut command = command(program, &path)?;
    let found = command.args(arguments).args(last).env("PATH", &path).env("LC_ALL", "C").output();
    let Output { status, stdout, stderr } = found.map_err(|error| format!("cannot run {program}: {error}"))?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&stderr);
    // How mkfs.xfs could be made to destroy what it has found is nothing to pass on.
    let is_passed_on = |line: &&str| !line.is_empty() && !line.contains("-f option");
    let said: Vec<_> = said.lines().map(str::trim).filter(is_passed_on).collect();
    Err(format!("{program} failed ({status}): {}", said.join(" ").escape_debug()))
}

/// A command for the first program of this name in the path: the one that is found without it depends on the C library.
#[expect(clippy::disallowed_methods, reason = "the administrator's programs, which nothing of the helper runs")]
fn command(program: &'static str, path: &str) -> Result<Command, String> {
    let mut candidates = path
        .split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| Path::new(directory).join(program));
    let found = candidates.find(|candidate| candidate.is_file());
    found.map(Command::new).ok_or_else(|| {
        format!("{program} is not installed: prepare needs wipefs and mount of util-linux, and mkfs.xfs of xfsprogs")
    })
}
