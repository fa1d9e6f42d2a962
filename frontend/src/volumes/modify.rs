//! Changes the attributes of a volume, also while it is in use.

use std::time::Duration;

use bulkhead_model::volumes::{Attributes, Fault};
use bulkhead_protocol::{ErrorKind, Request, Usage, VolumeId, VolumeKind};
use tokio::time::{Instant, sleep};

use super::Volumes;
use super::fault::of_promise;

/// How long a call goes on with a volume that is allocated in parts. The next call continues there.
const PATIENCE: Duration = Duration::from_secs(60);

/// How soon the next part is asked for. Others have their turn in between.
const PAUSE: Duration = Duration::from_millis(100);

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
        let (in_parts, begun) = (matches!(request, Request::Allocate { .. }), Instant::now());
        loop {
            match self.helper.size(request.clone()).await.map_err(|error| of_promise(error, &pool)) {
                // An image with very many holes is allocated in parts.
                Err(fault) if fault.is(ErrorKind::Busy) && in_parts && begun.elapsed() < PATIENCE => sleep(PAUSE).await,
                outcome => return outcome.map(drop),
            }
        }
    }
}
