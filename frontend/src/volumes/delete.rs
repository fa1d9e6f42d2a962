//! Deletes a volume. One that does not exist counts as deleted.

use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{ErrorKind, Request, VolumeId};

use super::Volumes;

impl Volumes {
    /// Deletes `volume`.
    ///
    /// # Errors
    /// `InUse` while it is published.
    pub async fn reclaim(&self, volume: VolumeId) -> Result<(), Fault> {
        self.delete_by(Request::Delete { volume: volume.clone() }, volume).await
    }

    /// Deletes `volume` if it was never published, so that a mistaken call cannot cost data.
    ///
    /// # Errors
    /// `Refused` when it may hold data, `Unsupported` when the helper is too old for the request.
    pub async fn discard(&self, volume: VolumeId) -> Result<(), Fault> {
        self.delete_by(Request::DeleteUnused { volume: volume.clone() }, volume).await
    }

    async fn delete_by(&self, request: Request, volume: VolumeId) -> Result<(), Fault> {
        let _guard = self.in_flight.enter(&volume).await?;
        self.kinds.forget(&volume);
        match self.helper.done(request).await.map_err(Fault::from) {
            Err(fault) if fault.is(ErrorKind::NotFound) => Ok(()),
            outcome => outcome,
        }
    }
}
