//! Which volumes have a filesystem of their own, as far as it was seen: the calls to publish and unpublish do not say, and
//! to ask for each of them would cost directories of the pool a request more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{VolumeId, VolumeKind};

use super::Volumes;

/// What was seen. The kind of a volume never changes. Clones share the same state.
#[derive(Clone, Default)]
pub struct Kinds(Arc<Mutex<HashMap<VolumeId, bool>>>);

impl Kinds {
    /// Records that `volume` is of this kind.
    pub fn record(&self, volume: &VolumeId, kind: &VolumeKind) {
        self.known().insert(volume.clone(), matches!(kind, VolumeKind::Filesystem { .. }));
    }

    /// Forgets a volume that is gone, whose id another one may get.
    pub fn forget(&self, volume: &VolumeId) {
        self.known().remove(volume);
    }

    /// Returns whether `volume` has a filesystem of its own, if that is known.
    pub fn has_filesystem(&self, volume: &VolumeId) -> Option<bool> {
        self.known().get(volume).copied()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<VolumeId, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Volumes {
    /// Returns whether `volume` has a filesystem of its own. The helper is asked if it was not seen yet.
    ///
    /// # Errors
    /// When it is not known, and the helper does not say.
    pub(super) async fn has_filesystem(&self, volume: &VolumeId) -> Result<bool, Fault> {
        if let Some(known) = self.kinds.has_filesystem(volume) {
            return Ok(known);
        }
        let usage = self.helper.usage(volume, None).await?;
        self.kinds.record(volume, &usage.spec.kind);
        Ok(matches!(usage.spec.kind, VolumeKind::Filesystem { .. }))
    }
}
