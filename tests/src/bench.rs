//! What the benches share: a place that is removed after them, and the times that summarize many.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;

use crate::keeper::{clean, make_place};
use crate::setting::{PoolFilesystem, Setting};

/// Calls `measure` with its setting on this host, a work directory and one for templates, and reports what went wrong.
pub fn run(pool_fs: PoolFilesystem, measure: impl FnOnce(&mut Setting, &Path, &Path) -> Result<()>) -> ExitCode {
    match in_place(pool_fs, measure) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn in_place(pool_fs: PoolFilesystem, measure: impl FnOnce(&mut Setting, &Path, &Path) -> Result<()>) -> Result<()> {
    let mut setting = Setting::on_host(pool_fs);
    let scratch = setting.place.make_scratch()?;
    let work = scratch.path().join("bench");
    std::fs::create_dir(&work)?;
    make_place(setting.place, &work)?;
    let measured = measure(&mut setting, &work, scratch.path());
    // After a failure there is much to clean up, and errors of the cleanup must not hide that failure.
    let cleaned = clean(&work, None);
    measured.and(cleaned)
}

/// The time within which `percent` of all are, of sorted ones.
pub fn percentile(times: &[Duration], percent: usize) -> Duration {
    let last = times.len().saturating_sub(1);
    times.get(last * percent / 100).copied().unwrap_or_default()
}
