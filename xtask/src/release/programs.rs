//! The archive of the programs for one architecture, with everything that is installed along with them.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use fs_err as fs;
use jiff::Timestamp;

use crate::archive::{Archive, gzip};
use crate::directory::run_directory;
use crate::files::files;
use crate::process::{capture, command};
use crate::workspace::{Architecture, Profile, Selection, Workspace};

/// The directories whose files have the same place in the archive as in the source, so that the commands in the pages work
/// there as well.
const DIRECTORIES: [&str; 7] = [
    "deploy/monitoring", "deploy/prepare", "deploy/seccomp", "deploy/selinux", "deploy/systemd", "deploy/udev", "docs",
];

/// Files that have the same place in the archive as in the source.
const FILES: [&str; 4] = ["CHANGELOG.md", "LICENSE", "README.md", "SECURITY.md"];

/// Where a shell looks for a program's completions, below a prefix such as /usr/local.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/bulkheadctl"),
    ("fish", "share/fish/vendor_completions.d/bulkheadctl.fish"),
    ("zsh", "share/zsh/site-functions/_bulkheadctl"),
];

/// Returns what all architectures have in common: the content of each file, by path.
pub fn common(workspace: &Workspace, source: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut content = BTreeMap::new();
    for file in FILES {
        content.insert(file.to_owned(), fs::read(source.join(file))?);
    }
    let client = workspace.program("bulkheadctl", Architecture::host(), Profile::Release);
    let client = || command(&client);
    for (shell, path) in COMPLETIONS {
        content.insert(path.to_owned(), capture(client().args(["completion", shell]))?.into_bytes());
    }
    let pages = run_directory(&workspace.runs())?;
    capture(client().arg("man").arg(pages.path()))?;
    let manuals = [("share/man/man1", pages.path().to_owned()), ("share/man/man8", source.join("deploy/man"))];
    for (place, directory) in
        DIRECTORIES.map(|directory| (directory, source.join(directory))).into_iter().chain(manuals)
    {
        content.extend(files(&directory)?.into_iter().map(|(path, bytes)| (format!("{place}/{path}"), bytes)));
    }
    Ok(content)
}

/// Writes the archive for an architecture.
pub fn write(
    workspace: &Workspace,
    architecture: Architecture,
    common: &BTreeMap<String, Vec<u8>>,
    date: Timestamp,
    directory: &Path,
) -> Result<()> {
    let name = format!("bulkhead-{}-linux-{}", super::VERSION, architecture.debian());
    let mut archive = Archive::new(date);
    for path in workspace.built(Selection::Shipped, architecture, Profile::Release)? {
        let program = path.file_name().context("a program without a name")?.to_string_lossy();
        archive.file(&format!("{name}/bin/{program}"), 0o755, &fs::read(&path)?)?;
    }
    for (path, content) in common {
        archive.file(&format!("{name}/{path}"), 0o644, content)?;
    }
    Ok(fs::write(directory.join(format!("{name}.tar.gz")), gzip(&archive.finish()?)?)?)
}
