//! csi-sanity: the test suite of the CSI community, built into a Go program of ours.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::go::go;
use crate::process::run;
use crate::workspace::Workspace;

/// The Go program's name; the program that runs it in the machine looks for it in its own directory.
const PROGRAM: &str = "bulkhead-csi-sanity";

/// Builds the program and returns its path.
pub fn build(workspace: &Workspace) -> Result<PathBuf> {
    let source = workspace.root.join("tests/sanity");
    ensure!(source.join("go.mod").exists(), "{} holds no Go module", source.display());
    let program = workspace.target.join("sanity").join(PROGRAM);
    let mut build = go(&workspace.target)?;
    build.args(["build", "-trimpath", "-buildvcs=false", "-o"]).arg(&program).arg(".");
    run(build.current_dir(&source))?;
    Ok(program)
}
