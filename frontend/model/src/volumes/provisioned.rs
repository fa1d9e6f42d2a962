//! What is known of a volume once it is made.

use bulkhead_protocol::{Bytes, VolumeId};

/// A volume that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provisioned {
    /// Its id.
    pub volume: VolumeId,
    /// The size it has.
    pub size: Bytes,
}
