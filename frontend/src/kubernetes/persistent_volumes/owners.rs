//! Records on each volume whose it is, and keeps the records true. They are for the day on which the objects are gone; and
//! an object that an agent may have made decides nothing about a volume on which something else is recorded.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use bulkhead_model::objects::owner::{self, Objection};
use bulkhead_model::objects::persistent_volume;
use bulkhead_model::owner::{Keys, Unreadable, read};
use bulkhead_protocol::{ErrorKind, OwnerRecord, VolumeId};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;

/// How long it takes at least from one volume to the next: each record is written to the disk.
const PACE: Duration = Duration::from_millis(100);

/// Keeps the records for as long as it is polled.
pub async fn run(context: &Context) {
    let mut records = Records::default();
    loop {
        if let Err(failure) = records.keep(context).await {
            debug!("noting whose volumes are failed: {failure}");
        }
        let pause = context.intervals.owners;
        sleep(pause + jitter(pause / 4)).await;
    }
}

/// What has been done about the records.
#[derive(Default)]
struct Records {
    of: HashMap<VolumeId, Recorded>,
    /// The version of the objects that were all looked at.
    seen: Option<u64>,
    fingerprints: RandomState,
}

/// What was last done about a volume's record.
enum Recorded {
    /// One with this fingerprint is on the volume.
    Is(u64),
    /// It could not be written, and is not tried before then.
    NotBefore(Instant),
}

/// What is to be recorded on a volume.
struct Wanted {
    /// The object that says so.
    object: ObjectRef<PersistentVolume>,
    /// When it was made.
    made: Option<Time>,
    /// The fingerprint of the record.
    fingerprint: u64,
}

impl Records {
    /// Writes those that are not as the objects say.
    async fn keep(&mut self, context: &Context) -> Result<(), Failure> {
        let version = context.stores.persistent_volumes.version();
        let is_settled = self.of.values().all(|recorded| matches!(recorded, Recorded::Is(_)));
        if is_settled && self.seen == Some(version) {
            return Ok(());
        }
        let cluster = context.cluster().await?;
        let wanted = self.wanted(context, cluster);
        self.of.retain(|volume, _| wanted.contains_key(volume));
        for (volume, Wanted { object, fingerprint, .. }) in wanted {
            let is_due = match self.of.get(&volume) {
                Some(Recorded::Is(found)) => *found != fingerprint,
                Some(Recorded::NotBefore(then)) => Instant::now() >= *then,
                None => true,
            };
            if !is_due {
                continue;
            }
            // A helper of an earlier release may have taken the place of this one in the meantime.
            if !context.volumes.keep_owners().await? {
                return Ok(());
            }
            // What has changed meanwhile is looked at again.
            let Some(object) = context.stores.persistent_volumes.get(&object) else { continue };
            let Some(record) = owner::record(&object, cluster) else { continue };
            let outcome = replace(context, &volume, &object, &record).await;
            self.of.insert(volume.clone(), recorded(context, &volume, &object, fingerprint, outcome));
            sleep(PACE).await;
        }
        // Which cluster this is may be found out later.
        self.seen = cluster.map(|_| version);
        Ok(())
    }

    /// Returns what is to be recorded on each volume of this node: what the oldest of several objects that name one volume
    /// says.
    fn wanted(&self, context: &Context, cluster: Option<&str>) -> HashMap<VolumeId, Wanted> {
        let mut wanted: HashMap<_, Wanted> = HashMap::new();
        for (volume, object) in context.volumes_named() {
            let Some(record) = owner::record(&object, cluster) else { continue };
            let made = object.creation_timestamp();
            if wanted.get(&volume).is_none_or(|other| made < other.made) {
                let fingerprint = self.fingerprints.hash_one(record.as_str());
                wanted.insert(volume, Wanted { object: ObjectRef::from_obj(&object), made, fingerprint });
            }
        }
        wanted
    }
}

/// What is remembered of an attempt to record what `object` says about `volume`.
fn recorded(
    context: &Context,
    volume: &VolumeId,
    object: &PersistentVolume,
    fingerprint: u64,
    outcome: Result<(), Failure>,
) -> Recorded {
    let Err(failure) = outcome else { return Recorded::Is(fingerprint) };
    let is_bound = persistent_volume::phase(object) == "Bound";
    match &failure {
        Failure::Refused(why) if is_bound => warn!(%volume, object = %object.name_any(), "{why}"),
        failure => debug!(%volume, "whose the volume is has not been noted: {failure}"),
    }
    // What is bound later is believed then; and what is busy is not for long.
    let is_soon = !is_bound || matches!(&failure, Failure::Volume(fault) if fault.is(ErrorKind::Busy));
    let pause = if is_soon { context.intervals.owners } else { context.intervals.owner_again };
    Recorded::NotBefore(Instant::now() + pause)
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
    let namespace = object.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.namespace.as_deref());
    let enter = || context.ledger.note(volume, namespace.unwrap_or_default());
    if found.as_ref() == Some(record) {
        enter();
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
    context.volumes.record_owner(volume.clone(), record.clone()).await?;
    enter();
    Ok(())
}
