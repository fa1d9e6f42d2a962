//! The distribution's packages and the toolchain's targets that a task needs.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};

use crate::process::{capture, command, run, run_quietly};
use crate::progress::{say, timed};
use crate::workspace::Architecture;

/// What the suite, the demonstration and the bench call on the host they run on.
pub const FILESYSTEM_TOOLS: [&str; 4] = ["e2fsprogs", "mount", "util-linux", "xfsprogs"];

/// What the suite calls in addition: to make system calls fail, and as clients that share no code with ours.
pub const SUITE_TOOLS: [&str; 4] = ["iproute2", "python3", "python3-grpcio", "strace"];

/// What a long run calls besides, as one more client.
pub const LONG_SUITE_TOOLS: [&str; 5] =
    ["default-jdk-headless", "libgrpc-java", "libguava-java", "libnetty-java", "libperfmark-java"];

/// Makes sure that Debian packages are installed: installs them as root, or fails and prints the command that would.
pub fn require(packages: &[&str]) -> Result<()> {
    let missing = missing(packages)?;
    if missing.is_empty() {
        return Ok(());
    }
    let list = missing.join(" ");
    ensure!(
        rustix::process::geteuid().is_root(),
        "packages are missing; this installs them:\n\n    \
         sudo apt-get update && sudo apt-get install --yes --no-install-recommends {list}\n"
    );
    timed(format_args!("installing packages: {list}"), || {
        refresh()?;
        let mut install = command("apt-get");
        install.args(["install", "--yes", "--no-install-recommends", "-qq"]).args(&missing);
        run_quietly(install.env("DEBIAN_FRONTEND", "noninteractive"))
    })
}

/// Updates the package lists.
pub fn refresh() -> Result<()> {
    run_quietly(command("apt-get").args(["update", "-qq"]))
}

fn missing(packages: &[&str]) -> Result<Vec<String>> {
    // dpkg-query fails when it does not know one of the names, but still answers for the others.
    let output = command("dpkg-query")
        .args(["--show", "--showformat=${Package} ${db:Status-Status}\n"])
        .args(packages)
        .output()
        .with_context(|| format!("start dpkg-query: a Debian system is needed for {}", packages.join(", ")))?;
    let answer = String::from_utf8_lossy(&output.stdout);
    let installed: BTreeSet<&str> = answer.lines().filter_map(|line| line.strip_suffix(" installed")).collect();
    Ok(packages.iter().filter(|package| !installed.contains(*package)).map(|package| package.to_string()).collect())
}

/// Makes sure that there is a C compiler for the shipped target: parts of the frontend's cryptography are in C.
pub fn require_compiler(architecture: Architecture) -> Result<()> {
    let (program, packages) = if architecture == Architecture::host() {
        ("musl-gcc".to_owned(), vec!["musl-tools".to_owned()])
    } else {
        let name = architecture.name();
        let packages =
            [format!("gcc-{}-linux-gnu", name.replace('_', "-")), format!("libc6-dev-{}-cross", architecture.debian())];
        (format!("{name}-linux-gnu-gcc"), packages.to_vec())
    };
    // Systems other than Debian may get it elsewhere. On Debian the headers are a package of their own.
    let headers = ["-E", "-include", "stdint.h", "-x", "c", "/dev/null"];
    match run_quietly(command(&program).args(headers)) {
        Ok(()) => Ok(()),
        Err(_) => require(&packages.iter().map(String::as_str).collect::<Vec<_>>()),
    }
}

/// Makes sure that the toolchain can build for a target.
pub fn require_target(triple: &str) -> Result<()> {
    let installed = match capture(command("rustup").args(["target", "list", "--installed"])) {
        Ok(installed) => installed,
        Err(error) => {
            // A toolchain installed without rustup has its own way to add a target; the build reports a missing one.
            say(format_args!("no rustup to ask for the target {triple}: {error}"));
            return Ok(());
        }
    };
    if installed.lines().any(|line| line == triple) {
        return Ok(());
    }
    say(format_args!("adding the rust target {triple}"));
    run(command("rustup").args(["target", "add", triple]))
}
