//! The values of flags: one reader for each type. Each fails with a sentence that says what is expected.

use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use bulkhead_protocol::{Invalid, QuotaMode};

use super::PublishConfig;
use crate::bookkeeping::{KUBELET_PROJECTS, permille};
use crate::place::Shape;
use crate::start::filter::OnViolation;
use crate::state::{FILESYSTEMS, PoolConfig};

/// A name of any of the protocol's types.
///
/// # Errors
/// A sentence that says what such a name is.
pub fn name<T: FromStr<Err = Invalid>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error| format!("{text:?} is not a valid name: {error}"))
}

/// An absolute path.
///
/// # Errors
/// A sentence that says so.
pub fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if plain && path.is_absolute() && path.parent().is_some() {
        Ok(path.components().collect())
    } else {
        Err(format!("expected an absolute path without '..', and not /, instead of {text:?}"))
    }
}

pub fn uid(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("expected a numeric user id, not {text:?}"))
}

/// The first and the last project id for volumes.
///
/// # Errors
/// A sentence that says what is expected.
pub fn project_ids(text: &str) -> Result<(u32, u32), String> {
    let range = text.split_once('-').and_then(|(first, last)| Some((first.parse().ok()?, last.parse::<u32>().ok()?)));
    range.filter(|(first, last)| *first >= 1 && first <= last && last.saturating_add(1) < KUBELET_PROJECTS).ok_or_else(|| {
        format!("expected FIRST-LAST from 1 to 1048575, because the kubelet uses those from 1048577 on and one is kept between, instead of {text:?}")
    })
}

pub fn number(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| matches!(number, 1..=1_000_000));
    number.ok_or_else(|| format!("expected a number from 1 to 1000000, not {text:?}"))
}

pub fn violation(text: &str) -> Result<OnViolation, String> {
    match text {
        "kill" => Ok(OnViolation::Kill),
        "log" => Ok(OnViolation::Log),
        _ => Err(format!("expected kill or log, not {text:?}")),
    }
}

pub fn publish(text: &str) -> Result<PublishConfig, String> {
    let (title, path) = text.split_once('=').ok_or_else(|| format!("expected NAME=DIR, not {text:?}"))?;
    if title.starts_with("kubelet-") {
        return Err("names that begin with kubelet- are reserved".to_owned());
    }
    Ok(PublishConfig { name: name(title)?, path: absolute(path)?, shape: Shape::Any })
}

pub fn pool(text: &str) -> Result<PoolConfig, String> {
    let expected = || {
        format!(
            "expected NAME=DIR[,quota=none][,overcommit=R][,reserve=BYTES][,filesystems[=N]][,extents=N], not {text:?}"
        )
    };
    let (title, rest) = text.split_once('=').ok_or_else(expected)?;
    let mut parts = rest.split(',');
    let mut pool = PoolConfig::new(name(title)?, absolute(parts.next().unwrap_or_default())?);
    for option in parts {
        match option.split_once('=').unwrap_or((option, "")) {
            ("quota", "none") => pool.quota = QuotaMode::None,
            ("overcommit", ratio) => pool.overcommit_permille = permille(ratio)?,
            ("reserve", text) => pool.reserve = text.parse()?,
            ("filesystems", "") => pool.filesystems = FILESYSTEMS,
            ("filesystems", text) => pool.filesystems = number(text)?,
            ("extents", text) => pool.extents = number(text)? as u64,
            _ => return Err(expected()),
        }
    }
    Ok(pool)
}
