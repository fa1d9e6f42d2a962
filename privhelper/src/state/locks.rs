//! Locks on volumes and targets. A second operation on a locked one gets `Busy`; no operation waits for another. Also
//! how many operations are in progress on a filesystem: one that is frozen, or whose disk does not answer, must not
//! hold up operations on others.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Mutex;
use std::time::{Duration, Instant};

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

/// Exclusive access to a volume, and to a target if there is one, until this is dropped.
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

/// How many operations may be in progress on one filesystem: as many as a frontend usually sends at a time.
pub const MOST_ON_A_FILESYSTEM: usize = 16;
/// A filesystem on which an operation takes longer is reported as hanging.
const LONGEST: Duration = Duration::from_secs(15);

/// When the operations in progress on a filesystem began.
#[derive(Debug, Default)]
pub struct InProgress(Mutex<Vec<Instant>>);

/// An operation in progress, until it is dropped.
#[derive(Debug)]
pub struct Admitted<'a>(&'a InProgress, Instant);

impl InProgress {
    /// Notes an operation on a pool of the filesystem.
    ///
    /// # Errors
    /// `Busy` when too many are in progress: each ties up a thread, and all of them may hang.
    pub fn admit(&self, pool: impl Display) -> Result<Admitted<'_>, Error> {
        let mut begun = lock(&self.0);
        if begun.len() >= MOST_ON_A_FILESYSTEM {
            let message = format!(
                "{MOST_ON_A_FILESYSTEM} operations are in progress on the filesystem of pool {pool}; try again; if this persists, find out why the filesystem does not answer"
            );
            return Err(Error::new(ErrorKind::Busy, message));
        }
        let now = Instant::now();
        begun.push(now);
        Ok(Admitted(self, now))
    }

    /// How long the oldest operation has taken, if that is too long.
    pub fn hangs_for(&self, now: Instant) -> Option<Duration> {
        let oldest = lock(&self.0).iter().min().copied()?;
        Some(now.saturating_duration_since(oldest)).filter(|age| *age >= LONGEST)
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut begun = lock(&self.0.0);
        if let Some(position) = begun.iter().position(|begun| *begun == self.1) {
            begun.swap_remove(position);
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

    #[test]
    fn only_so_many_operations_are_in_progress_on_a_filesystem() {
        let in_progress = InProgress::default();
        let mut admitted: Vec<_> =
            (0..MOST_ON_A_FILESYSTEM).map(|_| in_progress.admit("fast").expect("there is room")).collect();
        let error = in_progress.admit("fast").expect_err("one too many");
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(error.message.as_str().contains("pool fast"), "{error}");
        admitted.pop();
        drop(in_progress.admit("fast").expect("there is room again"));
        let oldest = admitted[0].1;
        assert_eq!(in_progress.hangs_for(oldest + LONGEST - Duration::from_millis(1)), None);
        assert!(in_progress.hangs_for(oldest + LONGEST).is_some());
        admitted.clear();
        assert_eq!(in_progress.hangs_for(oldest + LONGEST), None);
    }
}
