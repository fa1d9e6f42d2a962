//! The host's mounts at start: where directories lie, however their paths are written.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::refusal::{Refusal, Why};
use crate::log::shown;
use crate::sys::mountinfo::{Mount, MountTable};

/// The mounts, by their ids, which are the same as those from statx(2).
pub type Mounts = BTreeMap<u64, Mount>;

/// Reads a table.
///
/// # Errors
/// A sentence when it cannot be read, or a line is not understood.
pub fn read(table: &mut MountTable) -> Result<Mounts, Refusal> {
    let mut mounts = Mounts::new();
    let read = table.each(|mount| {
        mounts.insert(mount.id, mount.clone());
        ControlFlow::Continue(())
    });
    read.map_err(|error| format!("cannot read the table of mounts: {error}"))?;
    Ok(mounts)
}

/// Where a directory lies: two with the same position are one, and what lies below it in the filesystem is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// The mount that it was opened on.
    pub mount: u64,
    /// The device of the filesystem.
    pub device: (u32, u32),
    /// The directory in that filesystem.
    pub inner: PathBuf,
}

impl Position {
    /// The position of a directory with this path, which leads over no links, on that mount.
    ///
    /// # Errors
    /// A sentence when it is not there any more.
    pub fn of(path: &Path, mount: u64, mounts: &Mounts) -> Result<Self, Refusal> {
        let found = mounts.get(&mount).and_then(|found| Some((found.device, found.inner(path)?)));
        let (device, inner) = found
            .ok_or_else(|| Why::Moved.because(format!("{} was moved or unmounted during the start", shown(path))))?;
        Ok(Self { mount, device, inner })
    }

    /// Returns whether one of the two is in the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.device == other.device && (self.inner.starts_with(&other.inner) || other.inner.starts_with(&self.inner))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A mount of (8, 1).
    pub fn mount(root: &str, point: &str) -> Mount {
        Mount {
            super_options: String::new(),
            id: 1,
            parent: 1,
            device: (8, 1),
            root: root.into(),
            point: point.into(),
            options: String::new(),
            peers: None,
            slave: false,
            unbindable: false,
            filesystem: "xfs".to_owned(),
            source: "/dev/sda1".into(),
        }
    }
}
