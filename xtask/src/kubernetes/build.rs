//! Builds the programs with Go into a cache of the user, which outlives the checkout: building takes some minutes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::release::Release;
use crate::cache;
use crate::go::go;
use crate::process::run;
use crate::progress::{say, timed};
use crate::workspace::Architecture;

/// Builds the programs that are not in the cache yet, and returns the directory that holds them all.
pub fn provide(release: &Release, programs: &[(&str, &str)]) -> Result<PathBuf> {
    let cache = cache::directory("kubernetes")?;
    let directory = cache.join(format!("{}-{}", release.version, Architecture::host().debian()));
    let missing = || programs.iter().filter(|(name, _)| !directory.join(name).exists());
    if missing().next().is_none() {
        return Ok(directory);
    }
    let _lock = cache::lock(&cache, &release.version)?;
    fs::create_dir_all(&directory)?;
    say(format_args!("building Kubernetes {} once, into {}: some minutes", release.version, directory.display()));
    for (name, package) in missing() {
        timed(format_args!("building {name}"), || build(release, &cache, &directory.join(name), package))?;
    }
    Ok(directory)
}

fn build(release: &Release, cache: &Path, program: &Path, package: &str) -> Result<()> {
    // Only a complete program gets the final name.
    let unfinished = program.with_extension("unfinished");
    let mut build =
        go(cache).context("Kubernetes is built with Go 1.21 or newer, which fetches the version it needs")?;
    // Test packages are built with another command.
    match program.extension().is_some_and(|extension| extension == "test") {
        true => build.args(["test", "-c", "-vet=off"]),
        false => build.arg("build"),
    };
    build.args(["-trimpath", "-buildvcs=false", "-p", "2", "-ldflags", &release.linker_flags()]);
    build.arg("-o").arg(&unfinished).arg(package).current_dir(&release.module);
    build.env("GOTOOLCHAIN", &release.toolchain).env("GOOS", "linux").env("GOARCH", Architecture::host().debian());
    run(&mut build)?;
    fs::rename(&unfinished, program).with_context(|| format!("install {}", program.display()))
}
