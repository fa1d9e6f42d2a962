//! The programs of an earlier commit, for the tests of upgrades and of ways back.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::cache;
use crate::directory::run_directory;
use crate::process::{command, run_quietly};
use crate::programs::copy_into;
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
    let programs = cache::make_once(cache::directory("former")?.join(REVISION), |programs| build(workspace, programs))?;
    Ok(KEPT.iter().map(|name| programs.join(name)).collect())
}

fn build(workspace: &Workspace, programs: &Path) -> Result<()> {
    let scratch = run_directory(&cache::directory("former")?)?;
    let (archive, source) = (scratch.path().join("source.tar"), scratch.path().join("source"));
    let mut git = workspace.git(&["archive", "--prefix=source/", "--output"]);
    run_quietly(git.arg(&archive).arg(REVISION)).context(
        "the tests of upgrades need the programs of an earlier commit, which a shallow clone lacks: `git fetch --unshallow`",
    )?;
    run_quietly(command("tar").arg("--extract").arg("--file").arg(&archive).current_dir(scratch.path()))?;
    // A program may have been part of another package then.
    let former = Workspace::of_source(&source)?;
    let built = timed(format_args!("building the programs of {REVISION:.12} once: some minutes"), || {
        former.build(Selection::Only(KEPT), Architecture::host(), Profile::Dev)
    })?;
    copy_into(&built, programs)
}
