//! helm, which checks the chart: built once from its Go module, into a cache of the user's.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cache;
use crate::directory::lock;
use crate::go::go;
use crate::process::run;
use crate::progress::timed;
use crate::workspace::Workspace;

/// Names the program to the suite that checks the chart.
pub const PROGRAM: &str = "BULKHEAD_HELM";

/// The module's line with helm's version.
const MODULE: &str = "helm.sh/helm/v3 ";

/// Builds the program unless it is in the cache, and returns where it is.
pub fn provide(workspace: &Workspace) -> Result<PathBuf> {
    let source = workspace.root.join("tests/helm");
    let module = fs::read_to_string(source.join("go.mod")).context("read helm's Go module")?;
    let mut versions = module.lines().filter_map(|line| line.trim().strip_prefix(MODULE));
    let version = versions.next().and_then(|rest| rest.split(' ').next()).context("the module requires no helm")?;
    let cache = cache::directory("helm")?;
    fs::create_dir_all(&cache)?;
    let program = cache.join(format!("helm-{version}"));
    let _lock = lock(&cache, version)?;
    if program.exists() {
        return Ok(program);
    }
    // Only a complete program gets its final name.
    let unfinished = program.with_extension("unfinished");
    let mut build = go(&cache)?;
    build.args(["build", "-trimpath", "-buildvcs=false", "-p", "2", "-ldflags", "-s -w", "-o"]).arg(&unfinished);
    build.arg("helm.sh/helm/v3/cmd/helm").current_dir(&source);
    timed(format_args!("building helm {version} once: a few minutes"), || run(&mut build))?;
    fs::rename(&unfinished, &program).with_context(|| format!("install {}", program.display()))?;
    Ok(program)
}
