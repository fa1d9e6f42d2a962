//! Locks on volumes and targets. A second operation on a locked one gets `Busy`; no operation waits for another. Also:
//! how many operations are in progress on a filesystem: one that is frozen, or whose disk does not answer, must not
//! hold up operations on others.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bulkhead_protocol::{Error, Pace, TargetPath, VolumeId};

use super::{busy, lock};

/// The volumes and targets on which operations are in progress.
#[derive(Debug, Default)]
pub struct Locks {
    volumes: Mutex<BTreeSet<VolumeId>>,
    targets: Mutex<BTreeSet<TargetPath>>,
}

/// Exclusive access to a volume or a target, until this is dropped.
#[derive(Debug)]
pub struct Locked<'a, T: Ord> {
    held: &'a Mutex<BTreeSet<T>>,
    object: T,
}

impl Locks {
    /// Locks a volume.
    ///
    /// # Errors
    /// `Busy` when another operation holds it.
    pub fn volume(&self, id: &VolumeId) -> Result<Locked<'_, VolumeId>, Error> {
        take(&self.volumes, id)
            .ok_or_else(|| busy(format!("another operation on volume {id} is in progress; try again")))
    }

    /// Locks a target.
    ///
    /// # Errors
    /// `Busy` when another operation holds it.
    pub fn target(&self, path: &TargetPath) -> Result<Locked<'_, TargetPath>, Error> {
        take(&self.targets, path)
            .ok_or_else(|| busy(format!("another operation on target {path} is in progress; try again")))
    }
}

fn take<'a, T: Ord + Clone>(held: &'a Mutex<BTreeSet<T>>, object: &T) -> Option<Locked<'a, T>> {
    lock(held).insert(object.clone()).then(|| Locked { held, object: object.clone() })
}

impl<T: Ord> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        lock(self.held).remove(&self.object);
    }
}

/// How many operations that wait for the same may be in progress on one filesystem. What is prompt finds a place whatever
/// the others wait for; of those that wait for what a tenant may make as long as it likes, few are in progress.
const fn places(pace: Pace) -> usize {
    match pace {
        // As many as a frontend sends at a time.
        Pace::Prompt | Pace::Disk | Pace::Background => 16,
        Pace::Content | Pace::Device => 4,
        // The kernel does nothing else meanwhile, on a processor that others need.
        Pace::Extents => 1,
    }
}

/// How many operations may be in progress on one filesystem.
pub const MOST_ON_A_FILESYSTEM: usize = 3 * 16 + 2 * 4 + 1;
/// A filesystem on which an operation takes longer is reported as hanging.
const LONGEST: Duration = Duration::from_secs(15);

/// What the operations in progress on a filesystem wait for, and when each began. A clone is about the same filesystem.
#[derive(Clone, Debug, Default)]
pub struct InProgress(Arc<Mutex<Vec<(Pace, Instant)>>>);

/// An operation in progress, until it is dropped.
#[derive(Debug)]
pub struct Admitted(InProgress, (Pace, Instant));

impl InProgress {
    /// Records an operation on a pool of the filesystem.
    ///
    /// # Errors
    /// `Busy` when too many are in progress: each ties up a thread, and all of them may hang.
    pub fn admit(&self, pace: Pace, pool: impl Display) -> Result<Admitted, Error> {
        let mut begun = lock(&self.0);
        let most = places(pace);
        if begun.iter().filter(|(other, _)| *other == pace).count() >= most {
            let message = format!(
                "{most} such operations are in progress on the filesystem of pool {pool}; try again; if this persists, find out why the filesystem does not answer"
            );
            return Err(busy(message));
        }
        let own = (pace, Instant::now());
        begun.push(own);
        Ok(Admitted(self.clone(), own))
    }

    /// Returns when the oldest operation began.
    pub fn oldest(&self) -> Option<Instant> {
        lock(&self.0).iter().map(|(_, begun)| *begun).min()
    }

    /// Returns how long the oldest operation has taken, if that is too long. What a tenant can make as long as it likes says
    /// nothing about the filesystem.
    pub fn hangs_for(&self, now: Instant) -> Option<Duration> {
        let begun = lock(&self.0);
        let ages = begun.iter().filter(|(pace, _)| ![Pace::Extents, Pace::Content, Pace::Device].contains(pace));
        ages.map(|(_, begun)| now.saturating_duration_since(*begun)).max().filter(|age| *age >= LONGEST)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut begun = lock(&self.0.0);
        if let Some(position) = begun.iter().position(|begun| *begun == self.1) {
            begun.swap_remove(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::ErrorKind;

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
        let first = locks.volume(&id("vol-a")).expect("it is free");
        let error = locks.volume(&id("vol-a")).expect_err("it is locked");
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(error.message.as_str().contains("volume vol-a"), "{error}");
        drop(first);
        drop(locks.volume(&id("vol-b")).expect("another volume is free"));
        drop(locks.volume(&id("vol-a")).expect("it is free again"));
    }

    #[test]
    fn a_target_is_locked_by_its_directory_and_its_path() {
        let locks = Locks::default();
        let first = locks.target(&target("a")).expect("it is free");
        let error = locks.target(&target("a")).expect_err("it is locked");
        assert_eq!(error.kind, ErrorKind::Busy);
        assert!(error.message.as_str().contains("target work:a"), "{error}");
        drop(locks.target(&target("b")).expect("another target is free"));
        drop(first);
        drop(locks.target(&target("a")).expect("it is free again"));
    }

    #[test]
    fn only_so_many_operations_are_in_progress_on_a_filesystem() {
        let in_progress = InProgress::default();
        let mut admitted = Vec::new();
        for pace in [Pace::Content, Pace::Device, Pace::Extents, Pace::Background, Pace::Disk, Pace::Prompt] {
            admitted.extend((0..places(pace)).map(|_| in_progress.admit(pace, "fast").expect("there is room")));
            let error = in_progress.admit(pace, "fast").expect_err("one too many");
            assert_eq!(error.kind, ErrorKind::Busy);
            assert!(error.message.as_str().contains("pool fast"), "{error}");
        }
        assert_eq!(admitted.len(), MOST_ON_A_FILESYSTEM);
        admitted.pop();
        drop(in_progress.admit(Pace::Prompt, "fast").expect("there is room again"));
        let is_tenants = |(pace, _): (Pace, Instant)| [Pace::Extents, Pace::Content, Pace::Device].contains(&pace);
        let (_, oldest) = admitted.iter().find(|one| !is_tenants(one.1)).expect("there are some").1;
        assert_eq!(in_progress.hangs_for(oldest + LONGEST - Duration::from_millis(1)), None);
        assert!(in_progress.hangs_for(oldest + LONGEST).is_some());
        admitted.retain(|one| is_tenants(one.1));
        assert_eq!(in_progress.hangs_for(oldest + 2 * LONGEST), None, "a tenant's own are left");
        assert!(in_progress.oldest().is_some());
    }
}
