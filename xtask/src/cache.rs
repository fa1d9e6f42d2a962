//! The user's cache: for things that take minutes to make and should outlive the checkout.

use std::env;
use std::path::PathBuf;

use anyhow::{Result, bail};

/// A part of the cache.
pub fn directory(part: &str) -> Result<PathBuf> {
    let user = match (env::var_os("XDG_CACHE_HOME"), env::var_os("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => PathBuf::from(home).join(".cache"),
        (None, None) => bail!("neither XDG_CACHE_HOME nor HOME says where to keep {part}: set one of them"),
    };
    Ok(user.join("bulkhead").join(part))
}
