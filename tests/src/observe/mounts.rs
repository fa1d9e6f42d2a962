//! Mounts, from `/proc/self/mountinfo` (proc(5)).

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::UnmountFlags;

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Unique as long as the mount exists.
    pub id: u32,
    /// `major:minor` of the filesystem.
    pub device: String,
    /// The directory within the filesystem that is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// Options of this mount.
    pub options: Vec<String>,
    /// Propagation: `shared:N`, `master:N`, ….
    pub propagation: Vec<String>,
    /// Type of the filesystem.
    pub filesystem: String,
    /// Options of the filesystem.
    pub super_options: Vec<String>,
}

impl Mount {
    /// Returns whether the mount has this option.
    pub fn has(&self, option: &str) -> bool {
        self.options.iter().any(|own| own == option)
    }
}

/// All mounts, in the order in which they were made.
pub fn all() -> Result<Vec<Mount>> {
    let text = std::fs::read("/proc/self/mountinfo").context("read the table of mounts")?;
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(parse).collect()
}

/// Mounts at `path` itself, the topmost last.
pub fn at(path: &Path) -> Result<Vec<Mount>> {
    Ok(all()?.into_iter().filter(|mount| mount.point == path).collect())
}

/// Mounts below `path`, but not at it.
pub fn below(path: &Path) -> Result<Vec<Mount>> {
    Ok(all()?.into_iter().filter(|mount| mount.point != path && mount.point.starts_with(path)).collect())
}

/// Unmounts everything at and below `path`, the newest first.
pub fn unmount_all(path: &Path) -> Result<()> {
    for mount in all()?.iter().rev().filter(|mount| mount.point.starts_with(path)) {
        rustix::mount::unmount(&mount.point, UnmountFlags::NOFOLLOW)
            .or_else(|_| rustix::mount::unmount(&mount.point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH))
            .with_context(|| format!("unmount {}", mount.point.display()))?;
    }
    Ok(())
}

fn parse(line: &[u8]) -> Result<Mount> {
    let complaint = || format!("line of the table of mounts: {}", String::from_utf8_lossy(line));
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let separator = fields.iter().position(|field| *field == b"-").with_context(complaint)?;
    let field = |index: usize| fields.get(index).copied().with_context(complaint);
    let text = |index: usize| field(index).map(|field| String::from_utf8_lossy(field).into_owned());
    Ok(Mount {
        id: text(0)?.parse()?,
        device: text(2)?,
        root: unescaped(field(3)?),
        point: unescaped(field(4)?),
        options: listed(&text(5)?),
        propagation: fields[6..separator].iter().map(|tag| String::from_utf8_lossy(tag).into_owned()).collect(),
        filesystem: text(separator + 1)?,
        super_options: listed(&text(separator + 3)?),
    })
}

fn listed(options: &str) -> Vec<String> {
    options.split(',').map(str::to_owned).collect()
}

/// Space, tab, newline and backslash are encoded as `\ooo`.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}
