//! Records on each volume whose it is, and keeps the records true. Nothing here depends on them: they are for the day on
//! which the objects are gone.

use std::collections::HashMap;
use std::time::Duration;

use bulkhead_model::objects::owner;
use bulkhead_protocol::{OwnerRecord, VolumeId};
use tokio::time::{Instant, sleep};
use tracing::debug;

use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;

/// How long it takes at least from one volume to the next: each record is written to the disk.
const PACE: Duration = Duration::from_millis(100);

/// What was last done about a volume's record.
enum Recorded {
    /// This is on the volume.
    Is(OwnerRecord),
    /// It could not be written, and is not tried before then.
    NotBefore(Instant),
}

/// Keeps the records for as long as it is polled.
pub async fn run(context: &Context) {
    let mut recorded = HashMap::new();
    loop {
        if let Err(failure) = record_all(context, &mut recorded).await {
            debug!("noting whose volumes are failed: {failure}");
        }
        let pause = context.intervals.owners;
        sleep(pause + jitter(pause / 4)).await;
    }
}

async fn record_all(context: &Context, recorded: &mut HashMap<VolumeId, Recorded>) -> Result<(), Failure> {
    let wanted = wanted(context, context.cluster().await?);
    recorded.retain(|volume, _| wanted.contains_key(volume));
    for (volume, record) in wanted {
        let is_due = match recorded.get(&volume) {
            Some(Recorded::Is(found)) => *found != record,
            Some(Recorded::NotBefore(then)) => Instant::now() >= *then,
            None => true,
        };
        // A helper of an earlier release may have taken the place of this one in the meantime.
        if !is_due || !context.volumes.keep_owners().await? {
            continue;
        }
        let outcome = match context.volumes.record_owner(volume.clone(), record.clone()).await {
            Ok(()) => Recorded::Is(record),
            Err(fault) => {
                debug!(%volume, "whose the volume is has not been noted: {fault}");
                Recorded::NotBefore(Instant::now() + context.intervals.owner_again)
            }
        };
        recorded.insert(volume, outcome);
        sleep(PACE).await;
    }
    Ok(())
}

/// Returns what is to be recorded on each volume of this node.
fn wanted(context: &Context, cluster: Option<&str>) -> HashMap<VolumeId, OwnerRecord> {
    context.volumes_named().filter_map(|(volume, object)| Some((volume, owner::record(&object, cluster)?))).collect()
}
