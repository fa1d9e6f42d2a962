//! Records on each volume whose it is, and keeps the records true. They are for the day on which the objects are gone; and
//! an object that an agent may have made decides nothing about a volume on which something else is recorded.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_model::objects::owner::{self, Objection};
use bulkhead_model::objects::persistent_volume;
use bulkhead_model::owner::{Keys, Unreadable, read};
use bulkhead_protocol::{ErrorKind, OwnerRecord, VolumeId};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

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
    for (volume, (object, record)) in wanted {
        let is_due = match recorded.get(&volume) {
            Some(Recorded::Is(found)) => *found != record,
            Some(Recorded::NotBefore(then)) => Instant::now() >= *then,
            None => true,
        };
        // A helper of an earlier release may have taken the place of this one in the meantime.
        if !is_due || !context.volumes.keep_owners().await? {
            continue;
        }
        let outcome = match replace(context, &volume, &object, &record).await {
            Ok(()) => Recorded::Is(record),
            Err(failure) => {
                let is_bound = persistent_volume::phase(&object) == "Bound";
                match &failure {
                    Failure::Refused(why) if is_bound => warn!(%volume, object = %object.name_any(), "{why}"),
                    failure => debug!(%volume, "whose the volume is has not been noted: {failure}"),
                }
                // What is bound later is believed then; and what is busy is not for long.
                let is_soon = !is_bound || matches!(&failure, Failure::Volume(fault) if fault.is(ErrorKind::Busy));
                let pause = if is_soon { context.intervals.owners } else { context.intervals.owner_again };
                Recorded::NotBefore(Instant::now() + pause)
            }
        };
        recorded.insert(volume, outcome);
        sleep(PACE).await;
    }
    Ok(())
}

/// Notes on `volume` what `object` says about it now, which nobody may find out later: the object may be about to go.
///
/// # Errors
/// As [`noted`], and when the note there is of another object.
pub async fn note(context: &Context, volume: &VolumeId, object: &PersistentVolume) -> Result<(), Failure> {
    match owner::record(object, context.cluster().await?) {
        Some(record) if context.volumes.keep_owners().await? => replace(context, volume, object, &record).await,
        _ => Ok(()),
    }
}

/// What is noted on a volume about whose it is.
#[derive(Debug)]
pub enum Noted {
    /// Nothing, or notes are not kept.
    Nothing,
    /// This.
    Says(Keys),
    /// Something that cannot be read, for this reason: it may say anything.
    Unreadable(String),
}

impl Noted {
    /// Returns what the note says about `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        match self {
            Self::Says(keys) => keys.get(key).map(String::as_str),
            Self::Nothing | Self::Unreadable(_) => None,
        }
    }
}

/// Returns what is noted on `volume`.
///
/// # Errors
/// When the helper does not say.
pub async fn noted(context: &Context, volume: &VolumeId) -> Result<Noted, Failure> {
    if !context.volumes.keep_owners().await? {
        return Ok(Noted::Nothing);
    }
    let owned = match context.volumes.owner(volume).await {
        Err(fault) if fault.is(ErrorKind::NotFound) => return Ok(Noted::Nothing),
        Err(fault) if fault.is_io() => return Ok(Noted::Unreadable(fault.to_string())),
        owned => owned?,
    };
    let Some(record) = owned.owner else { return Ok(Noted::Nothing) };
    Ok(read(record.as_str()).map_or_else(|why| Noted::Unreadable(why.to_string()), Noted::Says))
}

/// Returns why `object` may not decide about `volume`, on which `noted` is noted.
///
/// # Errors
/// When the API server does not answer.
pub async fn objection(
    context: &Context,
    object: &PersistentVolume,
    noted: &Keys,
) -> Result<Option<Objection>, Failure> {
    Ok(owner::objection(noted, object, &context.agent.place, context.cluster().await?))
}

/// Notes `record`, which `object` says, unless that is there already, or the note there is of another object.
async fn replace(
    context: &Context,
    volume: &VolumeId,
    object: &PersistentVolume,
    record: &OwnerRecord,
) -> Result<(), Failure> {
    let found = match context.volumes.owner(volume).await {
        // What is damaged is replaced.
        Err(fault) if fault.is_io() => None,
        owned => owned?.owner,
    };
    if found.as_ref() == Some(record) {
        return Ok(());
    }
    let objection = match found.map(|found| read(found.as_str())) {
        Some(Ok(keys)) => objection(context, object, &keys).await?.map(|why| format!("it says that the volume {why}")),
        Some(Err(why @ Unreadable::Form)) => Some(format!("it cannot be read ({why})")),
        Some(Err(Unreadable::Line(_))) | None => None,
    };
    if let Some(objection) = objection {
        return Err(Failure::Refused(format!(
            "the note on the volume stays, though this object says something else: {objection}"
        )));
    }
    Ok(context.volumes.record_owner(volume.clone(), record.clone()).await?)
}

/// Returns what is to be recorded on each volume of this node, and the object that says so: the oldest of several that name
/// one volume.
fn wanted(context: &Context, cluster: Option<&str>) -> HashMap<VolumeId, (Arc<PersistentVolume>, OwnerRecord)> {
    let mut wanted: HashMap<_, (Arc<PersistentVolume>, _)> = HashMap::new();
    for (volume, object) in context.volumes_named() {
        let Some(record) = owner::record(&object, cluster) else { continue };
        let is_older = |than: &PersistentVolume| object.creation_timestamp() < than.creation_timestamp();
        if wanted.get(&volume).is_none_or(|(other, _)| is_older(other)) {
            wanted.insert(volume, (object, record));
        }
    }
    wanted
}
