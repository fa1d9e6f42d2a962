//! Whose volumes are: notes on the volumes themselves.

use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{OwnerRecord, Request, VolumeId};

use super::Volumes;
use crate::helper::Owned;

/// The protocol version that knows these notes.
const SINCE: u16 = 3;

impl Volumes {
    /// Returns whether the helper keeps such notes. One of an earlier release does not.
    ///
    /// # Errors
    /// When the helper cannot be reached.
    pub async fn keep_owners(&self) -> Result<bool, Fault> {
        Ok(self.helper.welcome().await?.version >= SINCE)
    }

    /// Returns what is recorded on `volume`.
    ///
    /// # Errors
    /// `Io` when what is recorded is not readable, `Unsupported` when the helper is too old for the request.
    pub async fn owner(&self, volume: &VolumeId) -> Result<Owned, Fault> {
        Ok(self.helper.owner(volume).await?)
    }

    /// Records on `volume` whose it is.
    ///
    /// # Errors
    /// As [`Self::owner`].
    pub async fn record_owner(&self, volume: VolumeId, owner: OwnerRecord) -> Result<(), Fault> {
        let _guard = self.in_flight.enter(&volume).await?;
        Ok(self.helper.done(Request::SetOwner { volume, owner }).await?)
    }
}
