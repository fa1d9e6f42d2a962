//! Deleting a volume that nobody ever used.

use bulkhead_protocol::{ErrorKind, Request, VolumeId};

use super::{Fault, Volumes};

impl Volumes {
    /// Deletes `volume` if it was never published, so that whatever led here can cost no data. One that is not there is
    /// as good as deleted.
    ///
    /// # Errors
    /// `Refused` when it may hold data, `Unsupported` when the helper is too old to tell.
    pub async fn discard(&self, volume: VolumeId) -> Result<(), Fault> {
        let _guard = self.in_flight.enter(&volume)?;
        match self.helper.done(Request::DeleteUnused { volume }).await.map_err(Fault::from) {
            Err(fault) if fault.is(ErrorKind::NotFound) => Ok(()),
            outcome => outcome,
        }
    }
}
