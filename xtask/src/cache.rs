//! The user's cache: for things that take minutes to make, should outlive the checkout, and are shared by all runs.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err::{self as fs, File};

/// A part of the cache.
pub fn directory(part: &str) -> Result<PathBuf> {
    let user = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cache")));
    let user =
        user.with_context(|| format!("neither XDG_CACHE_HOME nor HOME says where to keep {part}: set one of them"))?;
    Ok(user.join("bulkhead").join(part))
}

/// Makes what the cache has at this place, unless it is there, and returns the place. `make` is told where to put it: only
/// what is complete gets the final name. Whoever else wants the same waits for it.
pub fn make_once(place: PathBuf, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    if place.exists() {
        return Ok(place);
    }
    let cache = place.parent().context("what is kept is in no directory")?;
    let name = place.file_name().context("what is kept has no name")?.to_string_lossy();
    let _lock = lock(cache, &name)?;
    if !place.exists() {
        let unfinished = place.with_added_extension("unfinished");
        if unfinished.is_dir() {
            // An interrupted run has left it.
            fs::remove_dir_all(&unfinished)?;
        }
        make(&unfinished)?;
        fs::rename(&unfinished, &place)?;
    }
    Ok(place)
}

/// Locks one part of the cache for this process until the file is dropped.
pub fn lock(cache: &Path, part: &str) -> Result<File> {
    fs::create_dir_all(cache)?;
    let file = File::create(cache.join(format!("{part}.lock")))?;
    file.lock().context("wait for another xtask to prepare the same")?;
    Ok(file)
}
