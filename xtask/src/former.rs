//! The programs of an earlier commit, for the tests of upgrades and of ways back.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cache;
use crate::directory::lock;
use crate::process::{command, run_quietly};
use crate::progress::timed;
use crate::workspace::{Architecture, Profile, Selection, Workspace};

/// The commit before version 3 of the protocol. Take a later one only when what it stands for is no longer to be
/// upgraded from.
const REVISION: &str = "3ecf777289bc9198af35e3871321a5ccf7600700";

/// The variable that tells the suite where the programs are.
pub const VARIABLE: &str = "BULKHEAD_FORMER_DIR";

/// The programs that are kept.
const KEPT: &[&str] = &["bulkhead-frontend", "bulkhead-privhelper", "bulkheadctl"];

/// Builds the programs unless they are in the cache, and returns their paths.
pub fn provide(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let cache = cache::directory("former")?;
    let _lock = lock(&cache, REVISION)?;
    let programs = cache.join(REVISION);
    if !programs.exists() {
        build(workspace, &cache, &programs)?;
    }
    Ok(KEPT.iter().map(|name| programs.join(name)).collect())
}

fn build(workspace: &Workspace, cache: &Path, programs: &Path) -> Result<()> {
    let source = cache.join("source");
    discard(&source)?;
    fs::create_dir_all(&source).with_context(|| format!("make {}", source.display()))?;
    let archive = source.with_extension("tar");
    let mut git = command("git");
    git.current_dir(&workspace.root).args(["archive", "--output"]).arg(&archive).arg(REVISION);
    run_quietly(&mut git).context(
        "the tests of upgrades need the programs of an earlier commit, which a shallow clone lacks: `git fetch --unshallow`",
    )?;
    run_quietly(command("tar").arg("--extract").arg("--file").arg(&archive).arg("--directory").arg(&source))?;
    // A program may have been part of another package then.
    let former = Workspace::of_source(&source)?;
    let built = timed(format_args!("building the programs of {REVISION:.12} once: some minutes"), || {
        former.build(Selection::Only(KEPT), Architecture::host(), Profile::Dev)
    })?;
    // Only complete programs get the final name.
    let unfinished = programs.with_extension("unfinished");
    discard(&unfinished)?;
    fs::create_dir_all(&unfinished).with_context(|| format!("make {}", unfinished.display()))?;
    for program in built {
        let name = program.file_name().context("a program without a name")?;
        fs::copy(&program, unfinished.join(name)).with_context(|| format!("copy {}", program.display()))?;
    }
    fs::remove_file(&archive).with_context(|| format!("remove {}", archive.display()))?;
    discard(&source)?;
    fs::rename(&unfinished, programs).with_context(|| format!("install {}", programs.display()))
}

/// Removes what an interrupted build has left.
fn discard(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}
