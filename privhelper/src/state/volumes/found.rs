//! The table while a start fills it: nothing else runs, so nothing is held.

use std::sync::{Arc, Mutex};

use bulkhead_protocol::VolumeId;

use super::{Deleted, Key, Pool, Row, Share, Table, Volume, Volumes};

/// The volumes that were found so far. [`Volumes`] is made of it, and of nothing else: who has that table knows of all.
#[derive(Debug, Default)]
pub struct FoundVolumes(Table);

impl FoundVolumes {
    /// Ends this: from now on who changes the row of a volume holds it.
    pub fn all_known(self) -> Volumes {
        Volumes(Mutex::new(self.0))
    }

    /// Returns what is known about a volume.
    pub fn get(&self, id: &VolumeId) -> Option<Arc<Volume>> {
        self.0.volume(id).cloned()
    }

    /// Returns whether one of them is like this.
    pub fn any(&self, is_so: impl Fn(&Volume) -> bool) -> bool {
        self.0.rows.values().any(|row| matches!(row, Row::Live(volume) if is_so(volume)))
    }

    /// Adds a volume that is there; `false` if there already is one with that id.
    pub fn add(&mut self, id: VolumeId, volume: Volume) -> bool {
        self.0.add(id, volume)
    }

    /// Changes a volume, if there is one with that id.
    pub fn change(&mut self, id: &VolumeId, change: impl FnOnce(&mut Volume)) {
        if let Some(mut volume) = self.get(id) {
            change(Arc::make_mut(&mut volume));
            self.0.set(Key::Volume(id.clone()), Some(Row::Live(volume)));
        }
    }

    /// Forgets a volume that is not to be served. What it was promised stays promised, as by [`Self::set_aside`].
    pub fn refuse(&mut self, id: &VolumeId) {
        if let Some(volume) = self.get(id) {
            self.0.set(Key::Volume(id.clone()), None);
            self.set_aside(&volume.pool, volume.share());
        }
    }

    /// Promises a share to a volume that is there and is not served, for as long as the process lives.
    pub fn set_aside(&mut self, pool: &Pool, share: Share) {
        self.0.sums(pool).add(share);
    }

    /// Adds a deleted volume.
    pub fn add_deleted(&mut self, name: &str, deleted: Deleted) {
        self.0.set(Key::deleted(&deleted.pool.config.name, name), Some(Row::Deleted(Box::new(deleted))));
    }
}
