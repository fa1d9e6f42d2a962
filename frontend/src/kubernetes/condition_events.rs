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
use super::heartbeat::{self, Record};
use crate::volumes::{Health, beyond};

/// Reports for as long as it is polled. An earlier agent has reported what was wrong `before`.
pub async fn report(context: &Context, record: &Record, mut before: Reported) {
    let mut health = context.volumes.health();
    let mut reported = Health::default();
    loop {
        let now = health.borrow_and_update().clone();
        report_pools(context, &reported, &now);
        if heartbeat::words(&now) != heartbeat::words(&reported) {
            // There may be room no more, or again.
            context.capacity_changed.notify_one();
        }
        if now.are_pools_known {
            let words = heartbeat::words(&now);
            report_ends(context, &before, &words);
            record.set(words.clone());
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
    let (node, none) = (context.agent.node.reference(), BTreeMap::new());
    for (pool, conditions) in &now.pools {
        let known = before.pools.get(pool).unwrap_or(&none);
        for (_, condition) in beyond(conditions, known) {
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
            context.events.publish_about(context.agent.node.reference(), Reason::PoolConditionNormal, note);
        }
    }
}

fn report_volumes(context: &Context, before: &Health, now: &Health) {
    if now.volumes.keys().eq(before.volumes.keys()) {
        return;
    }
    let owners = owners(context);
    for (volume, abnormal) in beyond(&now.volumes, &before.volumes) {
        if let Some(owner) = owners.get(volume) {
            context.events.publish_about(owner.clone(), Reason::VolumeConditionAbnormal, abnormal.message.clone());
        }
    }
    for (volume, _) in beyond(&before.volumes, &now.volumes) {
        if let Some(owner) = owners.get(volume) {
            let note = "the volume is healthy again";
            context.events.publish_about(owner.clone(), Reason::VolumeConditionNormal, note);
        }
    }
}

fn report_orphans(context: &Context, before: &Health, now: &Health) {
    if beyond(&now.orphans, &before.orphans).next().is_none() {
        return;
    }
    let note = format!(
        "{} that no PersistentVolume names: `kubectl bulkhead orphans` says which of them belong to another node, whose disk may have moved here, and how they come back; see what the others hold before you delete them",
        count(now.orphans.len() as u64, "volume")
    );
    context.events.publish_about(context.agent.node.reference(), Reason::VolumesOrphaned, note);
}

/// The claim of each volume, or its PersistentVolume if it has none.
fn owners(context: &Context) -> BTreeMap<VolumeId, ObjectReference> {
    context.volumes_named().map(|(volume, object)| (volume, owner(&object))).collect()
}

fn owner(object: &PersistentVolume) -> ObjectReference {
    let claim = persistent_volume::claim_reference(object).map(ObjectReference::from);
    claim.unwrap_or_else(|| object.object_ref(&()))
}
