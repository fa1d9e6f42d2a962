//! Snapshots: taken, found, compared and deleted. They are listed like volumes.

use std::sync::atomic::Ordering::Relaxed;

use bulkhead_model::volumes::{Fault, identify_snapshot};
use bulkhead_protocol::{ErrorKind, Origin, Request, Snapshot, SnapshotOf, Usage, VolumeId, VolumeKind};

use super::Volumes;
use super::fault::of_copy;
use crate::helper::{Ranges, Sharing};

impl Volumes {
    /// Takes a snapshot of `source`, or finds the one that was taken of it before under the same name. What was written to
    /// the volume and synced is in it.
    ///
    /// # Errors
    /// `AlreadyExists` when something else has that name, `TooFragmented` when the volume's writers would wait for too
    /// long, `Unsupported` when neither the volume nor its pool can be copied.
    pub async fn create_snapshot(&self, source: VolumeId, name: &str) -> Result<Snapshot, Fault> {
        let (snapshot, name_hash) = identify_snapshot(name)?;
        if snapshot == source {
            return Err(Fault::already_exists(format!("{source} exists, and is a volume: choose another name")));
        }
        let _guards = self.in_flight.enter_both(&source, &snapshot).await?;
        if self.health().borrow().is_any_unmounted() {
            let pool = self.helper.usage(&source, None).await?.pool;
            self.check_mounted(&snapshot, &pool).await?;
        }
        let request = Request::CreateSnapshot { volume: source.clone(), snapshot, name_hash };
        let error = match self.helper.snapshot(request).await {
            Ok(snapshot) => return Ok(snapshot),
            Err(error) => error,
        };
        // The pool matters only to a message about its room.
        match self.helper.usage(&source, None).await {
            Ok(usage) => Err(of_copy(error, &source, &usage.pool)),
            Err(_) => Err(error.into()),
        }
    }

    /// The snapshot with this id.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    pub async fn snapshot(&self, id: &VolumeId) -> Result<Snapshot, Fault> {
        let Usage { pool, spec, used_bytes, .. } = self.helper.usage(id, None).await?;
        let VolumeKind::Snapshot { of } = spec.kind else {
            return Err(Fault::not_found(format!("no such snapshot: {id} is a volume")));
        };
        let gone = || Fault::not_found(format!("no such snapshot: {id}"));
        let origin = self.helper.origin(id).await?.ok_or_else(gone)?;
        let (block, allocated) = (of != SnapshotOf::Filesystem, used_bytes.unwrap_or_default());
        Ok(Snapshot { snapshot: id.clone(), pool, size: spec.size, block, allocated, origin })
    }

    /// Deletes a snapshot. One that does not exist counts as deleted.
    ///
    /// # Errors
    /// `WrongKind` when it is a volume.
    pub async fn delete_snapshot(&self, snapshot: VolumeId) -> Result<(), Fault> {
        let _guard = self.in_flight.enter(&snapshot).await?;
        self.kinds.forget(&snapshot);
        match self.helper.done(Request::DeleteSnapshot { snapshot }).await.map_err(Fault::from) {
            Err(fault) if fault.is(ErrorKind::NotFound) => Ok(()),
            outcome => outcome,
        }
    }

    /// Returns what a volume began as a copy of; `None` if it began empty.
    ///
    /// # Errors
    /// `NotFound` when there is no such volume or snapshot.
    pub async fn origin(&self, volume: &VolumeId) -> Result<Option<Origin>, Fault> {
        Ok(self.helper.origin(volume).await?)
    }

    /// Returns how much of a volume's image is shared with others, and how much is its own. It takes a while where the
    /// image is in very many pieces.
    ///
    /// # Errors
    /// `Unsupported` for a directory, and where the helper is too old.
    pub async fn sharing(&self, volume: &VolumeId) -> Result<Sharing, Fault> {
        Ok(self.helper.sharing(volume).await?)
    }

    /// The ranges of `snapshot` from an offset on: those in which it may differ from `base`, or without one those that hold
    /// data. They are as many as fit one reply of the helper.
    ///
    /// # Errors
    /// `NotFound` when there is no such snapshot.
    pub async fn delta(&self, snapshot: &VolumeId, base: Option<&VolumeId>, from: u64) -> Result<Ranges, Fault> {
        Ok(self.helper.delta(snapshot, base, from).await?)
    }

    /// Returns whether some pool of this node can copy volumes; while the helper is away, what it said last.
    pub async fn can_copy(&self) -> bool {
        let Ok(welcome) = self.helper.welcome().await else { return self.copies.load(Relaxed) };
        let mut found = false;
        for pool in welcome.pools.as_slice() {
            found = found || self.counts(&pool.name).await.extent_limit > 0;
        }
        self.copies.store(found, Relaxed);
        found
    }
}
