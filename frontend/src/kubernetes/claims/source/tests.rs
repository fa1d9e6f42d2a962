use serde_json::{Value, from_value, json};

use super::*;
use crate::kubernetes::claims::fixtures::{claim, merged};
use crate::kubernetes::snapshots::bound::bound_content;
use crate::kubernetes::snapshots::fixtures::content;

fn from(kind: &str, group: &str, changes: Value) -> PersistentVolumeClaim {
    let source = merged(json!({ "kind": kind, "name": "s", "apiGroup": group }), changes);
    claim(json!({ "metadata": { "namespace": "shop" }, "spec": { "dataSourceRef": source } }))
}

fn driver() -> DriverName {
    "bulkhead.csi.local".parse().unwrap()
}

fn snapshot(changes: Value) -> VolumeSnapshot {
    let base = json!({
        "metadata": { "name": "monday", "namespace": "shop", "uid": "1" },
        "status": { "boundVolumeSnapshotContentName": "snapcontent-1", "readyToUse": true },
    });
    from_value(merged(base, changes)).unwrap()
}

fn ready(changes: Value) -> VolumeSnapshotContent {
    let status = json!({ "readyToUse": true, "snapshotHandle": "snapshot-1", "restoreSize": 1 << 30 });
    content(merged(json!({ "status": status }), changes))
}

#[test]
fn two_kinds_of_sources_are_served() {
    assert_eq!(source(&claim(json!({}))).unwrap(), None);
    let of_claim = from("PersistentVolumeClaim", "", json!({}));
    assert_eq!(source(&of_claim).unwrap(), Some(Source::Claim("s")));
    let of_snapshot = from("VolumeSnapshot", SNAPSHOT_GROUP, json!({}));
    assert_eq!(source(&of_snapshot).unwrap(), Some(Source::Snapshot("s")));
    let of_populator = from("Hello", "hello.example.com", json!({}));
    assert!(source(&of_populator).unwrap().is_none() && is_left_to_populator(&of_populator));
    assert!(!is_left_to_populator(&of_claim) && !is_left_to_populator(&of_snapshot));
}

#[test]
fn sources_of_other_namespaces_and_apis_are_refused() {
    let elsewhere = from("PersistentVolumeClaim", "", json!({ "namespace": "bank" }));
    assert!(source(&elsewhere).unwrap_err().to_string().contains("dataSourceRef.namespace"));
    let same = from("PersistentVolumeClaim", "", json!({ "namespace": "shop" }));
    assert_eq!(source(&same).unwrap(), Some(Source::Claim("s")));
    for name in ["", "../../secrets/s", "s?watch=true", "a\nb"] {
        for kind in ["PersistentVolumeClaim", "VolumeSnapshot"] {
            let refusal = source(&from(kind, "", json!({ "name": name }))).unwrap_err().to_string();
            assert!(refusal.contains(&format!("no {kind} can be called")) && !refusal.contains('\n'), "{refusal}");
        }
    }
    let hostile = from("VolumeSnapshot", &"o\nther".repeat(300), json!({}));
    let refusal = source(&hostile).unwrap_err().to_string();
    assert!(refusal.len() < 500 && !refusal.contains('\n') && refusal.contains(SNAPSHOT_GROUP), "{refusal}");
}

#[test]
fn a_snapshot_is_bound_and_ready() {
    assert_eq!(bound_content(&snapshot(json!({}))).unwrap(), "snapcontent-1");
    for (changes, why) in [
        (json!({ "status": { "boundVolumeSnapshotContentName": null } }), "not ready"),
        (json!({ "status": { "readyToUse": null } }), "not ready"),
        (json!({ "status": { "boundVolumeSnapshotContentName": "../x" } }), "not ready"),
        (json!({ "status": { "readyToUse": false } }), "not ready"),
        (json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), "being deleted"),
    ] {
        let failure = bound_content(&snapshot(changes)).unwrap_err();
        assert!(failure.to_string().contains(why) && !failure.is_final(), "{failure}");
    }
}

#[test]
fn a_snapshot_and_its_content_name_each_other() {
    let check = |snapshot_changes: Value, content_changes: Value| {
        check_snapshot(&claim(json!({})), &snapshot(snapshot_changes), &ready(content_changes), &driver())
            .map_err(|failure| failure.to_string())
    };
    assert_eq!(check(json!({}), json!({})), Ok(()));
    for changes in
        [json!({ "uid": "2" }), json!({ "uid": null }), json!({ "name": "tuesday" }), json!({ "namespace": "bank" })]
    {
        let failure = check(json!({}), json!({ "spec": { "volumeSnapshotRef": changes } })).unwrap_err();
        assert!(failure.contains("do not name each other"), "{failure}");
    }
    check(json!({ "metadata": { "uid": null } }), json!({ "spec": { "volumeSnapshotRef": { "uid": null } } }))
        .unwrap_err();
    let other = check(json!({}), json!({ "spec": { "driver": "other.example.com" } })).unwrap_err();
    assert!(other.contains("another driver, other.example.com"), "{other}");
    for unsaid in [
        json!({ "status": { "snapshotHandle": null } }),
        json!({ "status": { "readyToUse": null } }),
        json!({ "status": { "snapshotHandle": "snapshot-2" } }),
    ] {
        assert!(check(json!({}), unsaid).unwrap_err().contains("not ready"));
    }
}

#[test]
fn a_copy_is_of_the_mode_of_its_source() {
    let check = |claim_changes: Value, content_changes: Value| {
        check_snapshot(&claim(claim_changes), &snapshot(json!({})), &ready(content_changes), &driver())
            .map_err(|failure| failure.to_string())
    };
    let block = || json!({ "spec": { "sourceVolumeMode": "Block" } });
    let mode = check(json!({}), block()).unwrap_err();
    assert!(mode.contains("is of a block volume") && mode.contains("volumeMode to Block"), "{mode}");
    let allowed =
        json!({ "metadata": { "annotations": { "snapshot.storage.kubernetes.io/allow-volume-mode-change": "true" } } });
    assert!(check(json!({}), merged(block(), allowed)).is_err(), "whoever allows it");
    assert_eq!(check(json!({ "spec": { "volumeMode": "Block" } }), block()), Ok(()));
}

#[test]
fn a_claim_that_is_copied_is_bound() {
    let source = |changes: Value| {
        let base = json!({ "metadata": { "name": "data", "uid": "7" },
                           "spec": { "volumeName": "pvc-7.here", "storageClassName": "local" } });
        claim(merged(base, changes))
    };
    let object = |changes: Value| -> PersistentVolume {
        let base = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "pvc-7.here" },
            "spec": { "csi": { "driver": "bulkhead.csi.local", "volumeHandle": "pvc-7" },
                      "claimRef": { "namespace": "shop", "name": "data", "uid": "7" } },
            "status": { "phase": "Bound" },
        });
        from_value(merged(base, changes)).unwrap()
    };
    let check = |claim_changes: Value, source_changes: Value, object_changes: Value| {
        let (source, object) = (source(source_changes), object(object_changes));
        bound_volume(&source)
            .and_then(|_| check_claim(&claim(claim_changes), &source, &object, &driver()))
            .map_err(|failure| failure.to_string())
    };
    assert_eq!(check(json!({}), json!({}), json!({})), Ok(()));
    for (claim_changes, source_changes, object_changes, why) in [
        (json!({}), json!({ "spec": { "volumeName": null } }), json!({}), "has no volume yet"),
        (json!({}), json!({ "spec": { "volumeName": "../nodes/x" } }), json!({}), "has no volume yet"),
        (json!({}), json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), json!({}), "being deleted"),
        (json!({}), json!({}), json!({ "status": { "phase": "Released" } }), "is not bound"),
        (json!({}), json!({}), json!({ "spec": { "claimRef": { "uid": "8" } } }), "is not bound"),
        (json!({}), json!({}), json!({ "spec": { "csi": { "driver": "other" } } }), "another driver"),
        (json!({}), json!({ "spec": { "storageClassName": "" } }), json!({}), "no storage class"),
        (json!({ "spec": { "volumeMode": "Block" } }), json!({}), json!({}), "has a directory volume"),
        (json!({}), json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } }), json!({}), "has 2 GiB"),
    ] {
        let failure = check(claim_changes, source_changes, object_changes).unwrap_err();
        assert!(failure.contains(why), "{failure}");
    }
}
