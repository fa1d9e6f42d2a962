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
        match (attributes.inodes, spec.kind) {
            (Some(inodes), VolumeKind::Directory { inodes: has, .. }) if inodes != has => {
                let request = Request::SetInodes { volume, inodes };
                self.helper.size(request).await.map(drop).map_err(|error| of_promise(error, &pool))
            }
            (_, VolumeKind::Image { sparse: true, .. } | VolumeKind::Filesystem { sparse: true, .. })
                if attributes.thick =>
            {
                let allocated = self.helper.size(Request::Allocate { volume }).await;
                allocated.map(drop).map_err(|error| of_promise(error, &pool))
            }
            _ => Ok(()),
        }
    }
}
