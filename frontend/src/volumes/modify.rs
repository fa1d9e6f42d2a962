//! Changes the attributes of a volume, also while it is in use.

use bulkhead_model::volumes::{Attributes, Fault};
use bulkhead_protocol::{Request, Usage, VolumeId, VolumeKind};

use super::Volumes;
use super::fault::of_promise;

impl Volumes {
    /// Gives `volume` these attributes. What it has already is left alone.
    ///
    /// # Errors
    /// `Invalid` when a volume of its kind has no such attribute, or it uses more than it is to have; `NoRoom` when the pool
    /// cannot promise it.
    pub async fn modify(&self, volume: VolumeId, attributes: &Attributes) -> Result<(), Fault> {
        let _guard = self.in_flight.enter(&volume).await?;
        let Usage { pool, spec, .. } = self.helper.usage(&volume, None).await?;
        attributes.check(&spec.kind)?;
        let request = match (spec.kind, attributes.inodes) {
            _ if attributes.are_those_of(&spec.kind) => return Ok(()),
            (VolumeKind::Directory { .. }, Some(inodes)) => Request::SetInodes { volume, inodes },
            _ => Request::Allocate { volume },
        };
        self.helper.size(request).await.map(drop).map_err(|error| of_promise(error, &pool))
    }
}
