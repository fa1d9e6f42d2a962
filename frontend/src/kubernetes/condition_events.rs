//! Events about pools and volumes: on the Node, and on the claims of volumes that are abnormal or missing; once when
//! something appears, and once when it is over. What an earlier agent has reported may be over as well.

use std::collections::BTreeMap;

use bulkhead_model::objects::lease::Reported;
use bulkhead_model::objects::persistent_volume;
use bulkhead_model::quantity::count;
use bulkhead_model::volumes::{Identity, Severity};
use bulkhead_protocol::VolumeId;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use kube::Resource;

use super::api::events::Reason;
use super::context::Context;
use super::heartbeat;
use crate::volumes::Health;

/// Reports for as long as it is polled. An earlier agent has reported what was wrong `before`.
pub async fn report(context: &Context, mut before: Reported) {
    let mut health = context.volumes.health();
    let mut reported = Health::default();
    loop {
        let now = health.borrow_and_update().clone();
        report_pools(context, &reported, &now);
        if now.are_pools_known {
            let words = heartbeat::words(&now);
            report_ends(context, &before, &words);
            context.record.set(words.clone());
            before = words;
        }
        report_volumes(context, &reported, &now);
        report_orphans(context, &reported, &now);
        reported = now;
        if health.changed().await.is_err() {
            return;
        }
    }
}

fn report_pools(context: &Context, before: &Health, now: &Health) {
    let node = context.node.reference();
    for (pool, conditions) in &now.pools {
        let known = before.pools.get(pool);
        for (_, condition) in conditions.iter().filter(|(key, _)| known.is_none_or(|known| !known.contains_key(*key))) {
            let reason = match condition.kind().severity {
                Severity::Failure | Severity::Warning => Reason::PoolConditionAbnormal,
                Severity::Notice => Reason::PoolConditionNotice,
            };
            context.events.publish_about(node.clone(), reason, format!("pool {pool}: {condition}"));
        }
    }
}

fn report_ends(context: &Context, before: &Reported, now: &Reported) {
    for (pool, words) in before {
        let left = now.get(pool);
        for word in words.iter().filter(|word| left.is_none_or(|left| !left.contains(*word))) {
            let note = format!("pool {pool}: no longer: {}", Identity::parse(word));
            context.events.publish_about(context.node.reference(), Reason::PoolConditionNormal, note);
        }
    }
}

fn report_volumes(context: &Context, before: &Health, now: &Health) {
    let appeared = now.volumes.iter().filter(|(volume, _)| !before.volumes.contains_key(*volume));
    let appeared: Vec<_> = appeared.map(|(volume, abnormal)| (volume, abnormal.message.clone())).collect();
    let over: Vec<_> = before.volumes.keys().filter(|volume| !now.volumes.contains_key(*volume)).collect();
    if appeared.is_empty() && over.is_empty() {
        return;
    }
    let owners = owners(context);
    for (volume, message) in appeared {
        if let Some(owner) = owners.get(volume) {
            context.events.publish_about(owner.clone(), Reason::VolumeConditionAbnormal, message);
        }
    }
    for volume in over {
        if let Some(owner) = owners.get(volume) {
            let note = "the volume is healthy again";
            context.events.publish_about(owner.clone(), Reason::VolumeConditionNormal, note);
        }
    }
}

fn report_orphans(context: &Context, before: &Health, now: &Health) {
    if now.orphans.keys().all(|volume| before.orphans.contains_key(volume)) {
        return;
    }
    let note = format!(
        "{} that no PersistentVolume names: `kubectl bulkhead orphans` lists what is there; delete what nobody needs with `bulkheadctl volume delete`, and make a PersistentVolume for the rest",
        count(now.orphans.len() as u64, "volume")
    );
    context.events.publish_about(context.node.reference(), Reason::VolumesOrphaned, note);
}

/// The claim of each volume, or its PersistentVolume if it has none.
fn owners(context: &Context) -> BTreeMap<VolumeId, ObjectReference> {
    let objects = context.stores.persistent_volumes.state();
    objects.iter().filter_map(|object| owner(context, object)).collect()
}

fn owner(context: &Context, object: &PersistentVolume) -> Option<(VolumeId, ObjectReference)> {
    let volume = persistent_volume::own_volume(object, &context.driver, &context.place)?;
    let claim = persistent_volume::claim_reference(object).map(ObjectReference::from);
    Some((volume, claim.unwrap_or_else(|| object.object_ref(&()))))
}
