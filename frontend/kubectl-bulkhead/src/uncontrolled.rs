//! VolumeSnapshots at which no snapshot controller looks. Nothing says so on the objects, whose status stays empty, and no
//! agent is given them: the controller makes what the agents see.

use std::collections::BTreeSet;

use bulkhead_model::check::Check;
use bulkhead_model::objects::volume_snapshot::VolumeSnapshot;
use bulkhead_model::quantity::count;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::cluster::{Cluster, Failure, Volume};

/// How long a VolumeSnapshot may be new. A controller looks at it within seconds.
const NEW: SignedDuration = SignedDuration::from_secs(60);

/// Those of the driver's `volumes`. None if the cluster does not know the kind, or the user may not list them.
///
/// # Errors
/// When they cannot be listed.
pub async fn find(cluster: &Cluster, volumes: &[Volume]) -> Result<Option<Check>, Failure> {
    let claims = volumes.iter().filter_map(|volume| volume.claim.as_ref());
    let claims: BTreeSet<_> = claims.map(|(namespace, name, _)| (namespace.as_str(), name.as_str())).collect();
    let (snapshots, now): (Api<VolumeSnapshot>, _) = (Api::all(cluster.client.clone()), Timestamp::now());
    let ignored = |snapshot: VolumeSnapshot| is_ignored(&snapshot, &claims, now).then_some(snapshot);
    match cluster.list("listing VolumeSnapshots", snapshots, ListParams::default(), ignored).await {
        Err(failure) if failure.is_forbidden() || failure.is_unknown() => Ok(None),
        ignored => Ok(check(&ignored?)),
    }
}

/// Returns whether no controller has looked at a VolumeSnapshot of one of the `claims`, though one should have.
fn is_ignored(snapshot: &VolumeSnapshot, claims: &BTreeSet<(&str, &str)>, now: Timestamp) -> bool {
    let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref();
    let namespace = snapshot.metadata.namespace.as_deref().unwrap_or_default();
    let made = snapshot.metadata.creation_timestamp.as_ref();
    claim.is_some_and(|claim| claims.contains(&(namespace, claim)))
        && snapshot.status.is_empty()
        && made.is_some_and(|made| now.duration_since(made.0) > NEW)
}

fn check(ignored: &[VolumeSnapshot]) -> Option<Check> {
    let first = ignored.first()?;
    let more = if ignored.len() > 1 { ", …" } else { "" };
    let message = format!(
        "none has looked at {} for more than a minute ({}/{}{more}): does one run? docs/backups.md says how to install it",
        count(ignored.len() as u64, "VolumeSnapshot"),
        first.namespace().unwrap_or_default(),
        first.name_any()
    );
    Some(Check::failed("snapshot controller", message))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn snapshot(name: &str, claim: &str, status: Value) -> VolumeSnapshot {
        let metadata = json!({ "name": name, "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z" });
        let spec = json!({ "source": { "persistentVolumeClaimName": claim } });
        from_value(json!({ "metadata": metadata, "spec": spec, "status": status })).unwrap()
    }

    #[test]
    fn only_what_a_controller_should_have_looked_at_is_told() {
        let (claims, now) = (BTreeSet::from([("shop", "data")]), Timestamp::now());
        let check = |snapshot: VolumeSnapshot| {
            let ignored = is_ignored(&snapshot, &claims, now).then_some(snapshot);
            check(ignored.as_slice()).map(|check| check.message)
        };
        let told = check(snapshot("monday", "data", json!({}))).unwrap();
        assert!(
            told.starts_with("none has looked at 1 VolumeSnapshot for more than a minute (shop/monday): "),
            "{told}"
        );
        assert_eq!(check(snapshot("monday", "other", json!({}))), None, "of another driver");
        for status in [
            json!({ "boundVolumeSnapshotContentName": "content" }),
            json!({ "readyToUse": false }),
            json!({ "error": { "message": "no such class" } }),
        ] {
            assert_eq!(check(snapshot("monday", "data", status.clone())), None, "{status}");
        }
        let mut new = snapshot("monday", "data", json!({}));
        new.metadata.creation_timestamp = from_value(json!(Timestamp::now())).unwrap();
        assert_eq!(check(new), None);
    }
}
