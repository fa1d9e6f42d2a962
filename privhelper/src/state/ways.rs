//! Whether the publish directories are still joined to the host: what its mount table shows of the ways to them.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_protocol::{Error, PublishName, Separation};

use super::in_use;
use crate::sys::mountinfo::Mount;

/// A publish directory in which mounts do not reach the host, and why.
pub type Apart = (PublishName, Separation);

/// How a publish directory is reached on the host.
#[derive(Clone, Debug)]
pub struct Way {
    /// The directory.
    pub name: PublishName,
    /// The peer group that joins the copy to the host's mount.
    pub peers: u32,
    /// The mounts on the way: the directory's own first, the root of the namespace last.
    pub steps: Vec<Step>,
}

/// A mount on a way.
#[derive(Clone, Debug)]
pub struct Step {
    /// The mount.
    pub mount: u64,
    /// What is reached on it: the directory, or the point of the mount before.
    pub leads_to: PathBuf,
}

/// What a reading has shown of a way so far.
#[derive(Clone, Debug)]
pub struct Look {
    /// The way.
    pub way: Arc<Way>,
    seen: usize,
    sees_its_mount: bool,
    is_shared: bool,
    is_covered: bool,
}

impl Look {
    /// Nothing was seen yet.
    pub fn new(way: &Arc<Way>) -> Self {
        Self { way: Arc::clone(way), seen: 0, sees_its_mount: false, is_shared: false, is_covered: false }
    }

    /// Sees one mount.
    pub fn see(&mut self, mount: &Mount) {
        let mut before = None;
        for Step { mount: own, leads_to } in &self.way.steps {
            let is_on_the_way = leads_to.starts_with(&mount.point);
            if mount.id == *own {
                self.seen = self.seen.saturating_add(usize::from(is_on_the_way));
                if before.is_none() {
                    (self.sees_its_mount, self.is_shared) = (is_on_the_way, mount.peers == Some(self.way.peers));
                }
            } else if mount.parent == *own && before != Some(mount.id) {
                // At the very point of the mount before, it is beneath that one.
                self.is_covered |= is_on_the_way && (before.is_none() || mount.point != *leads_to);
            }
            before = Some(*own);
        }
    }

    /// Returns whether the directory's own mount was seen.
    pub fn sees_its_mount(&self) -> bool {
        self.sees_its_mount
    }

    /// Returns whether every mount on the way was seen.
    pub fn sees_all_steps(&self) -> bool {
        self.seen >= self.way.steps.len()
    }

    /// Learns from another look at the same way, which has seen more, whether a mount covers it.
    pub fn learn(&mut self, other: &Self) {
        self.is_covered |= other.is_covered;
    }

    /// Returns why mounts do not reach the host, judging by the directory's own mount.
    pub fn own_mount(&self) -> Option<Separation> {
        match (self.sees_its_mount, self.is_shared) {
            (false, _) => Some(Separation::Unmounted),
            (true, false) => Some(Separation::NotShared),
            (true, true) => None,
        }
    }

    /// Returns why mounts do not reach the host, once all mounts were seen.
    pub fn whole_way(&self) -> Option<Separation> {
        let gone = (!self.sees_all_steps()).then_some(Separation::Unmounted);
        self.own_mount().or(gone).or(self.is_covered.then_some(Separation::Covered))
    }
}

/// The error for what the placer has not done in a publish directory, given what the host's table says of that: it knows
/// besides whether the directory was moved.
pub fn apart(joined: Result<(), Error>, name: &PublishName) -> Error {
    joined.err().unwrap_or_else(|| refusal(name, Separation::Moved))
}

/// The error for a publish directory that is apart from the host's.
pub fn refusal(directory: impl Display, cause: Separation) -> Error {
    let (what, remedy) = match cause {
        Separation::Unmounted => ("the mount that it was on is gone", "mount it again, shared"),
        Separation::NotShared => ("its mount is not shared any more", "run mount --make-shared on its mount"),
        Separation::Covered => ("another mount hides it", "unmount that one, or make it shared"),
        Separation::Moved => ("it was renamed or replaced", "put it back, or restart bulkhead-privhelper"),
    };
    in_use(format!("publish directory {directory} is apart from the host's: {what}; {remedy}"))
}
