//! Room for new volumes: what the privileged helper measures, less what has proved not to be there.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bulkhead_protocol::ErrorKind;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::volumes::{Capacity, FaultKind, Parameters};

/// How long a size that could not be had is not offered again.
const DISPROVED: Duration = Duration::from_secs(60);

/// Sizes that could not be had though bytes were free: a filesystem may lack inodes, or project ids. By class.
#[derive(Debug, Default)]
pub struct Rooms(Mutex<HashMap<String, (u64, Instant)>>);

impl Rooms {
    /// Room for volumes of `class`, which has these parameters. Where none can be made there is no room for them.
    ///
    /// # Errors
    /// When the helper is away: then nobody knows.
    pub async fn measure(&self, context: &Context, class: &str, parameters: &Parameters) -> Result<Capacity, Failure> {
        let room = match context.volumes.capacity(parameters).await {
            Ok(room) => room,
            // A pool that fails is no place for a volume, and no reason to say nothing of the others.
            Err(fault) if matches!(fault.kind, FaultKind::Typed(kind) if kind != ErrorKind::Busy) => {
                Capacity::default()
            }
            Err(fault) => return Err(fault.into()),
        };
        let mut disproved = self.disproved();
        let Some((size, since)) = disproved.get(class).copied() else { return Ok(room) };
        if since.elapsed() < DISPROVED {
            return Ok(Capacity { largest_volume: room.largest_volume.min(size.saturating_sub(1)), ..room });
        }
        disproved.remove(class);
        // However little the difference is, who waits for it is to be told.
        context.publisher.nudge();
        Ok(room)
    }

    /// A volume of `size` bytes of `class` could not be made.
    pub fn disprove(&self, class: &str, size: u64) {
        self.disproved()
            .entry(class.to_owned())
            .and_modify(|known| *known = (known.0.min(size), Instant::now()))
            .or_insert((size, Instant::now()));
    }

    fn disproved(&self) -> MutexGuard<'_, HashMap<String, (u64, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
