//! Locks of volumes and targets. A second operation on a locked one is answered `Busy`; no operation waits for another.

use std::collections::BTreeSet;
use std::sync::Mutex;

use bulkhead_protocol::{Error, ErrorKind, TargetPath, VolumeId};

use super::lock;

/// The volumes and targets on which operations are in progress.
#[derive(Debug, Default)]
pub struct Locks(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    volumes: BTreeSet<VolumeId>,
    targets: BTreeSet<TargetPath>,
}

/// The sole right to work on a volume, and on a target if there is one, until it is dropped.
#[derive(Debug)]
pub struct Locked<'a> {
    locks: &'a Locks,
    volume: VolumeId,
    target: Option<TargetPath>,
}

impl Locks {
    /// Locks a volume, and the target if there is one.
    ///
    /// # Errors
    /// `Busy` when another operation holds either.
    pub fn lock(&self, volume: &VolumeId, target: Option<&TargetPath>) -> Result<Locked<'_>, Error> {
        let busy = |object: String| {
            Error::new(ErrorKind::Busy, format!("another operation on {object} is in progress; try again"))
        };
        let mut held = lock(&self.0);
        if held.volumes.contains(volume) {
            return Err(busy(format!("volume {volume}")));
        }
        if let Some(target) = target.filter(|target| held.targets.contains(target)) {
            return Err(busy(format!("target {target}")));
        }
        held.volumes.insert(volume.clone());
        held.targets.extend(target.cloned());
        Ok(Locked { locks: self, volume: volume.clone(), target: target.cloned() })
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let mut held = lock(&self.locks.0);
        held.volumes.remove(&self.volume);
        if let Some(target) = &self.target {
            held.targets.remove(target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().expect("a volume id")
    }

    fn target(path: &str) -> TargetPath {
        TargetPath { directory: "work".parse().expect("a name"), path: path.parse().expect("a path") }
    }

    #[test]
    fn a_volume_is_locked_until_the_lock_is_dropped() {
        let locks = Locks::default();
        let first = locks.lock(&id("vol-a"), None).expect("it is free");
        let error = locks.lock(&id("vol-a"), Some(&target("a"))).expect_err("it is locked");
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(error.message.as_str().contains("volume vol-a"), "{error}");
        drop(first);
        drop(locks.lock(&id("vol-a"), None).expect("it is free again"));
    }

    #[test]
    fn two_volumes_exclude_each_other_at_one_target_only() {
        let locks = Locks::default();
        let first = locks.lock(&id("vol-a"), Some(&target("a"))).expect("both are free");
        let error = locks.lock(&id("vol-b"), Some(&target("a"))).expect_err("the target is locked");
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(error.message.as_str().contains("target work:a"), "{error}");
        // The failed attempt has left nothing locked.
        drop(locks.lock(&id("vol-b"), Some(&target("b"))).expect("both are free"));
        drop(first);
        drop(locks.lock(&id("vol-b"), Some(&target("a"))).expect("the target is free again"));
    }
}
