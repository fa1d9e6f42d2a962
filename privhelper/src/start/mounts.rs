//! The host's mounts at start: where directories lie, however their paths are written.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use bulkhead_protocol::PublishName;

use super::refusal::{Refusal, Why};
use crate::log::shown;
use crate::state::{Step, Way};
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

/// The way to a publish directory.
///
/// # Errors
/// A sentence when mounts in it would not reach the host, or the jail might not show what is mounted there.
pub fn way(name: &PublishName, path: &Path, position: &Position, mounts: &Mounts) -> Result<Way, Refusal> {
    let gone = || Why::Moved.because(format!("{} is on no mount of this namespace", shown(path)));
    let own = mounts.get(&position.mount).ok_or_else(gone)?;
    let (directory, point) = (shown(path), shown(&own.point));
    let peers = own.peers.ok_or_else(|| {
        Why::NotPropagated.because(format!(
            "{directory}: its mount {point} is not shared, so what is published would be visible nowhere else; run: mount --make-rshared {point}"
        ))
    })?;
    if own.slave {
        return Err(Why::NotPropagated.because(format!(
            "{directory}: its mount {point} is a slave, so the host would not see what is published; run the helper in the host's mount namespace, or with Bidirectional propagation"
        )));
    }
    // KERNEL(6.17): before, a clone silently lacks them.
    if let Some(below) = mounts.values().find(|mount| mount.unbindable && mount.point.starts_with(path)) {
        let below = shown(&below.point);
        return Err(Why::Unbindable.because(format!(
            "{below}, below {directory}, is unbindable, so it would be missing here; run: mount --make-private {below}"
        )));
    }
    let (mut steps, mut mount, mut leads_to) = (Vec::new(), own, path);
    loop {
        steps.push(Step { mount: mount.id, leads_to: leads_to.to_owned() });
        leads_to = &mount.point;
        match mounts.get(&mount.parent).filter(|parent| parent.id != mount.id) {
            Some(parent) => mount = parent,
            None => break,
        }
    }
    Ok(Way { name: name.clone(), peers, steps })
}

#[cfg(test)]
pub mod tests {
    use super::way as way_of;
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

    #[test]
    fn a_way_has_every_mount_on_it_and_what_makes_it_unfit_is_said() {
        let shared =
            |id: u64, parent: u64, point: &str| (id, Mount { id, parent, peers: Some(7), ..mount("/", point) });
        let name: PublishName = "work".parse().expect("a name");
        let mut mounts = Mounts::from([shared(1, 1, "/"), shared(2, 1, "/var"), shared(3, 2, "/var/data/a/b")]);
        let position = Position { mount: 2, device: (8, 1), inner: "/data".into() };
        let way = |mounts: &Mounts| way_of(&name, Path::new("/var/data"), &position, mounts);
        let steps: Vec<_> =
            way(&mounts).expect("a way").steps.into_iter().map(|step| (step.mount, step.leads_to)).collect();
        assert_eq!(steps, [(2, PathBuf::from("/var/data")), (1, PathBuf::from("/var"))]);
        let complaint = |mounts: &mut Mounts, id: u64, change: fn(&mut Mount)| {
            change(mounts.get_mut(&id).expect("a mount"));
            way(mounts).expect_err("it is unfit").why
        };
        assert_eq!(complaint(&mut mounts, 3, |mount| mount.unbindable = true), Why::Unbindable);
        assert_eq!(complaint(&mut mounts, 2, |mount| mount.slave = true), Why::NotPropagated);
        assert_eq!(complaint(&mut mounts, 2, |mount| mount.peers = None), Why::NotPropagated);
    }
}
