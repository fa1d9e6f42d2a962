//! Deletes a volume that was never used.

use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{ErrorKind, Request, VolumeId};

use super::Volumes;

impl Volumes {
    /// Deletes `volume` if it was never published, so that a mistaken call cannot cost data. A volume that does not
    /// exist counts as deleted.
    ///
    /// # Errors
    /// `Refused` when it may hold data, `Unsupported` when the helper is too old for the request.
    pub async fn discard(&self, volume: VolumeId) -> Result<(), Fault> {
        let _guard = self.in_flight.enter(&volume).await?;
        self.kinds.forget(&volume);
        match self.helper.done(Request::DeleteUnused { volume }).await.map_err(Fault::from) {
            Err(fault) if fault.is(ErrorKind::NotFound) => Ok(()),
            outcome => outcome,
        }
    }
}
