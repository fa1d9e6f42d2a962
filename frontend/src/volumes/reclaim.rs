//! Deletes a volume.

use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{ErrorKind, Request, VolumeId};

use super::Volumes;

impl Volumes {
    /// Deletes `volume`. A volume that does not exist counts as deleted.
    ///
    /// # Errors
    /// `InUse` while it is published.
    pub async fn reclaim(&self, volume: VolumeId) -> Result<(), Fault> {
        let _guard = self.in_flight.enter(&volume).await?;
        self.kinds.forget(&volume);
        match self.helper.done(Request::Delete { volume }).await.map_err(Fault::from) {
            Err(fault) if fault.is(ErrorKind::NotFound) => Ok(()),
            outcome => outcome,
        }
    }
}
