//! Records on each volume whose it is, and keeps the notes true. Nothing here depends on them: they are for the day on
//! which the objects are gone.

use std::collections::HashMap;
use std::time::Duration;

use bulkhead_model::objects::{owner, persistent_volume};
use bulkhead_protocol::{OwnerRecord, VolumeId};
use tokio::time::{Instant, sleep};
use tracing::debug;

use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;

/// How often the objects are looked at. It asks nobody.
const PERIOD: Duration = Duration::from_secs(5);

/// How long it takes at least from one volume to the next: each note is written to the disk.
const PACE: Duration = Duration::from_millis(100);

/// How soon a note that could not be written is tried again.
const AFTER_FAILURE: Duration = Duration::from_secs(300);

/// What was last done about a volume's note.
enum Noted {
    /// This is on the volume.
    Is(OwnerRecord),
    /// It could not be written, and is not tried before then.
    NotBefore(Instant),
}

/// Keeps the notes for as long as it is polled.
pub async fn run(context: &Context) {
    let mut noted = HashMap::new();
    loop {
        if let Err(failure) = note_all(context, &mut noted).await {
            debug!("noting whose volumes are failed: {failure}");
        }
        sleep(PERIOD + jitter(PERIOD / 4)).await;
    }
}

async fn note_all(context: &Context, noted: &mut HashMap<VolumeId, Noted>) -> Result<(), Failure> {
    let wanted = wanted(context, context.cluster().await?);
    noted.retain(|volume, _| wanted.contains_key(volume));
    for (volume, record) in wanted {
        let is_due = match noted.get(&volume) {
            Some(Noted::Is(found)) => *found != record,
            Some(Noted::NotBefore(then)) => Instant::now() >= *then,
            None => true,
        };
        // A helper of an earlier release may have taken the place of this one in the meantime.
        if !is_due || !context.volumes.keep_owners().await? {
            continue;
        }
        let outcome = match context.volumes.note_owner(volume.clone(), record.clone()).await {
            Ok(()) => Noted::Is(record),
            Err(fault) => {
                debug!(%volume, "whose the volume is has not been noted: {fault}");
                Noted::NotBefore(Instant::now() + AFTER_FAILURE)
            }
        };
        noted.insert(volume, outcome);
        sleep(PACE).await;
    }
    Ok(())
}

/// What is to be recorded on each volume of this node.
fn wanted(context: &Context, cluster: Option<&str>) -> HashMap<VolumeId, OwnerRecord> {
    let objects = context.stores.persistent_volumes.state();
    let records = objects.iter().filter_map(|object| {
        let volume = persistent_volume::own_volume(object, &context.driver, &context.place)?;
        Some((volume, owner::record(object, cluster)?))
    });
    records.collect()
}
