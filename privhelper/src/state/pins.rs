//! Mounts that show a volume but are not its targets, as the host's mount table had them at start. A volume that has
//! one is not deleted: somebody may be using it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;

use bulkhead_protocol::{TargetPath, VolumeId};

use super::lock;

/// Such a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// Where the host had it.
    pub point: PathBuf,
    /// The same below a publish directory, where it can be checked again.
    pub target: Option<TargetPath>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Pins(Mutex<BTreeMap<VolumeId, Vec<Pin>>>);

impl Pins {
    /// Notes one.
    pub fn add(&self, id: VolumeId, pin: Pin) {
        lock(&self.0).entry(id).or_default().push(pin);
    }

    /// Those of a volume.
    pub fn of(&self, id: &VolumeId) -> Vec<Pin> {
        lock(&self.0).get(id).cloned().unwrap_or_default()
    }

    /// Forgets one that is certainly gone.
    pub fn forget(&self, id: &VolumeId, gone: &Pin) {
        if let Some(pins) = lock(&self.0).get_mut(id) {
            pins.retain(|pin| pin != gone);
        }
    }
}
