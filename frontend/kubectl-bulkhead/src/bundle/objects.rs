//! The driver's objects in the API server.

use std::collections::BTreeSet;
use std::fmt::Debug;

use bulkhead_model::objects::content::Content;
use bulkhead_model::objects::group_content::VolumeGroupSnapshotContent;
use bulkhead_model::objects::names::{self, PROVISIONER, PROVISIONER_BETA};
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};

use super::archive::{self, Archive, ENTRY};
use super::time::Time;
use crate::agents::PODS;
use crate::cluster::{Cluster, Failure};

/// Adds all of them.
pub async fn add(cluster: &Cluster, archive: &mut Archive, time: Time) -> Result<(), Failure> {
    let (driver, client) = (&cluster.driver, || cluster.client.clone());
    let all = ListParams::default;
    let own = || all().labels(PODS);
    let of_driver = || all().labels(&format!("{}={driver}", names::DRIVER_LABEL));
    let namespace = &cluster.namespace;

    put(cluster, archive, time, "nodes", Api::<Node>::all(client()), all(), whole).await?;
    put(cluster, archive, time, "pods", Api::<Pod>::namespaced(client(), namespace), all(), whole).await?;
    put(cluster, archive, time, "daemonsets", Api::<DaemonSet>::namespaced(client(), namespace), own(), whole).await?;
    put(cluster, archive, time, "configmaps", Api::<ConfigMap>::namespaced(client(), namespace), own(), whole).await?;
    let registered = |object: CSIDriver| (object.name_any() == *driver).then(|| value(object));
    put(cluster, archive, time, "csidrivers", Api::<CSIDriver>::all(client()), all(), registered).await?;
    put(cluster, archive, time, "csinodes", Api::<CSINode>::all(client()), all(), whole).await?;
    let provided = |class: StorageClass| (class.provisioner == *driver).then(|| value(class));
    put(cluster, archive, time, "storageclasses", Api::<StorageClass>::all(client()), all(), provided).await?;
    let capacities = Api::<CSIStorageCapacity>::all(client());
    put(cluster, archive, time, "csistoragecapacities", capacities, of_driver(), whole).await?;
    let contents = Api::<VolumeSnapshotContent>::all(client());
    put(cluster, archive, time, "volumesnapshotcontents", contents, all(), |one| handled(cluster, &one)).await?;
    let groups = Api::<VolumeGroupSnapshotContent>::all(client());
    put(cluster, archive, time, "volumegroupsnapshotcontents", groups, all(), |one| handled(cluster, &one)).await?;
    let volumes = Api::<PersistentVolume>::all(client());
    let made = |object: PersistentVolume| cluster.volume(&object).map(|_| value(object));
    put(cluster, archive, time, "persistentvolumes", volumes, all(), made).await?;

    let volumes = time.share(cluster.volumes()).await.ok().and_then(Result::ok).unwrap_or_default();
    let bound: BTreeSet<_> = volumes.iter().flat_map(|it| &it.claim).map(|claim| (&claim.0, &claim.1)).collect();
    let mut ours = BTreeSet::new();
    let claimed = |claim: PersistentVolumeClaim| {
        let name = (claim.namespace().unwrap_or_default(), claim.name_any());
        let provisioner = [PROVISIONER, PROVISIONER_BETA].iter().find_map(|name| claim.annotations().get(*name));
        let is_ours = provisioner == Some(driver) || bound.contains(&(&name.0, &name.1));
        is_ours.then(|| {
            ours.insert(name);
            value(claim)
        })
    };
    put(cluster, archive, time, "persistentvolumeclaims", Api::<PersistentVolumeClaim>::all(client()), all(), claimed)
        .await?;
    let told = |event: Event| {
        let about = &event.involved_object;
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let about = (text(&about.namespace), text(&about.name));
        let is_ours = about.0 == *namespace || ours.contains(&about) || volumes.iter().any(|it| it.name == about.1);
        is_ours.then(|| {
            json!({ "about": event.involved_object.kind, "namespace": about.0, "name": about.1, "type": event.type_,
                    "reason": event.reason, "message": event.message, "count": event.count,
                    "first": event.first_timestamp, "last": event.last_timestamp, "from": event.reporting_component })
        })
    };
    put(cluster, archive, time, "events", Api::<Event>::all(client()), all(), told).await
}

/// What is told of the object of a snapshot or a group of the driver.
fn handled<K: Content>(cluster: &Cluster, content: &K) -> Option<Value> {
    let of = content.owner();
    (content.driver() == cluster.driver).then(|| {
        json!({ "name": content.name_any(), "node": content.labels().get(&cluster.node_key()),
                "of": [of.namespace, of.name], "deletionPolicy": content.deletion_policy(), "handle": content.handle(),
                "ready": content.is_ready(), "error": content.error() })
    })
}

fn whole<K: Serialize>(object: K) -> Option<Value> {
    Some(value(object))
}

fn value<K: Serialize>(object: K) -> Value {
    serde_json::to_value(object).unwrap_or_else(|error| json!({ "unreadable": error.to_string() }))
}

/// Adds the objects of one kind, as many as an entry may have.
async fn put<K>(
    cluster: &Cluster,
    archive: &mut Archive,
    time: Time,
    kind: &str,
    api: Api<K>,
    parameters: ListParams,
    mut keep: impl FnMut(K) -> Option<Value>,
) -> Result<(), Failure>
where
    K: Clone + DeserializeOwned + Debug + Resource + Send + Sync + 'static,
{
    let (mut bytes, mut left) = (0_usize, 0_usize);
    let mut bounded = |object: K| {
        let object = keep(object)?;
        bytes = bytes.saturating_add(object.to_string().len());
        left += usize::from(bytes > ENTRY);
        (bytes <= ENTRY).then_some(object)
    };
    let operation = format!("listing {kind}");
    let listed = time.share(cluster.list(&operation, api, parameters, &mut bounded)).await;
    let flaw = (left > 0).then(|| format!("{left} more would have exceeded {} MiB", ENTRY >> 20));
    let listed = listed.and_then(|listed| listed.map_err(|failure| failure.to_string()));
    let found = listed.map(|objects| archive::Content::Objects(objects, flaw));
    Ok(archive.add(&format!("objects/{kind}.jsonl"), "the API server", found)?)
}
