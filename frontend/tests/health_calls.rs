//! The calls of CSI 1.13 that ask for health: what is answered for each kind of condition, and that it heals.

#[allow(dead_code, reason = "each suite uses a part of it")]
mod fake;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use bulkhead_frontend::csi::Plugin;
use bulkhead_frontend::helper::Helper;
use bulkhead_frontend::proto::csi::controller_server::Controller;
use bulkhead_frontend::proto::csi::node_server::Node;
use bulkhead_frontend::proto::csi::{
    ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest, NodeGetStorageHealthRequest,
    NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest, StorageHealthErrorType, VolumeHealth, VolumeHealthErrorType,
};
use bulkhead_frontend::volumes::Volumes;
use bulkhead_protocol::{
    Condition, ErrorKind, NameHash, PoolStatus, Reply, Request, SnapshotOf, Usage, VolumeId, VolumeKind, VolumeSpec,
};
use tonic::{Code, Request as Call, Status};

use fake::{Act, FakeHelper, Greeting, counts, done, failure, no_volumes, status, welcome};

/// What the helper currently says of the volume, and of each pool.
#[derive(Default)]
struct Said {
    volume: Option<Condition>,
    refusal: Option<ErrorKind>,
    is_snapshot: bool,
    pools: Vec<Condition>,
}

fn usage(said: &Said) -> Act {
    let kind = match said.is_snapshot {
        true => VolumeKind::Snapshot { of: SnapshotOf::Filesystem },
        false => VolumeKind::Filesystem { sparse: false, mode: 0o755.try_into().unwrap() },
    };
    let size = (1 << 30).try_into().unwrap();
    Act::Answer(Ok(Reply::Usage(Usage {
        pool: "fast".parse().unwrap(),
        spec: VolumeSpec { size, kind, name_hash: NameHash([0; 32]) },
        used_bytes: Some(4096),
        available_bytes: Some(8192),
        used_inodes: Some(1),
        available_inodes: Some(10),
        targets: 1,
        condition: said.volume.clone(),
    })))
}

fn helper(said: &Arc<Mutex<Said>>) -> FakeHelper {
    let said = Arc::clone(said);
    let mut fake = FakeHelper::stopped(move |request| {
        let said = said.lock().unwrap();
        match request {
            Request::Usage { .. } => said.refusal.map_or_else(|| usage(&said), failure),
            Request::PoolStatus { .. } => {
                let conditions = said.pools.clone().try_into().unwrap();
                Act::Answer(Ok(Reply::Pool(PoolStatus { conditions, ..status(1 << 40) })))
            }
            Request::List { .. } => no_volumes(),
            Request::PoolCounts { .. } => counts(300, 0, (1000, 10)),
            _ => done(),
        }
    });
    let many: Vec<_> = (0..14).map(|number| format!("pool-{number}")).collect();
    let pools: Vec<_> = ["fast", "slow"].into_iter().chain(many.iter().map(String::as_str)).collect();
    fake.greet_with(Greeting::Welcome(Box::new(welcome(&pools))));
    fake.run();
    fake
}

fn plugin(fake: &FakeHelper) -> (Plugin, Volumes) {
    let volumes = Volumes::new(Helper::new(fake.path()));
    (Plugin::new("bulkhead.csi.local".parse().unwrap(), "node-1".to_owned(), volumes.clone()), volumes)
}

fn told(health: &VolumeHealth) -> Vec<(VolumeHealthErrorType, &str)> {
    health.health_statuses.iter().map(|entry| (entry.status(), entry.reason.as_str())).collect()
}

/// The health of a volume as its node and as its controller see it: the same.
async fn health(plugin: &Plugin, volume: &str) -> Result<VolumeHealth, Status> {
    let request = NodeGetVolumeHealthRequest {
        volume_id: volume.to_owned(),
        volume_publish_path: "/var/lib/kubelet/not/there".to_owned(),
        ..NodeGetVolumeHealthRequest::default()
    };
    let node = plugin.node_get_volume_health(Call::new(request)).await.map(tonic::Response::into_inner);
    let request = ControllerGetVolumeHealthRequest { volume_id: volume.to_owned(), ..Default::default() };
    let controller = plugin.controller_get_volume_health(Call::new(request)).await.map(tonic::Response::into_inner);
    let node = node.map(|answer| answer.volume_health.unwrap());
    let controller = controller.map(|answer| answer.volume_health.unwrap());
    assert_eq!(node.as_ref().map_err(Status::code), controller.as_ref().map_err(Status::code));
    node
}

async fn storage(plugin: &Plugin) -> Vec<(StorageHealthErrorType, String, String)> {
    let request = Call::new(NodeGetStorageHealthRequest::default());
    let answer = plugin.node_get_storage_health(request).await.unwrap().into_inner();
    answer.backend_health.into_iter().map(|health| (health.status(), health.reason, health.message)).collect()
}

#[tokio::test]
async fn a_volume_has_what_the_helper_says_of_it_until_it_says_otherwise() {
    use VolumeHealthErrorType::{DataLoss, Degraded, Inaccessible};
    let said = Arc::new(Mutex::new(Said::default()));
    let fake = helper(&said);
    let (plugin, _) = plugin(&fake);
    for (condition, expected) in [
        (Condition::NotMountable { errno: 117 }, Some((Inaccessible, "NotMountable"))),
        (Condition::ImageSize { found: 1, recorded: 2 }, Some((DataLoss, "ImageSize"))),
        (Condition::ImageSize { found: 2, recorded: 1 }, Some((Degraded, "ImageSize"))),
        (Condition::Other, Some((Degraded, "Other"))),
        (Condition::NotDirect, None),
    ] {
        said.lock().unwrap().volume = Some(condition);
        let health = health(&plugin, "pvc-1").await.unwrap();
        assert_eq!((health.volume_id.as_str(), told(&health)), ("pvc-1", expected.into_iter().collect()));
        assert!(health.health_statuses.iter().all(|entry| !entry.message.is_empty()), "{health:?}");
    }
    said.lock().unwrap().volume = None;
    for (refusal, expected) in [(ErrorKind::Io(5), "Errors"), (ErrorKind::PoolBroken, "NotServed")] {
        said.lock().unwrap().refusal = Some(refusal);
        assert_eq!(told(&health(&plugin, "pvc-1").await.unwrap()), [(Inaccessible, expected)]);
    }
    said.lock().unwrap().refusal = None;
    assert_eq!(told(&health(&plugin, "pvc-1").await.unwrap()), []);
}

#[tokio::test]
async fn a_volume_that_does_not_exist_is_lost_only_if_somebody_needs_it() {
    let said = Arc::new(Mutex::new(Said { refusal: Some(ErrorKind::NotFound), ..Said::default() }));
    let fake = helper(&said);
    let (plugin, volumes) = plugin(&fake);
    for volume in ["pvc-1", "NO ID"] {
        assert_eq!(health(&plugin, volume).await.unwrap_err().code(), Code::NotFound);
    }
    assert_eq!(health(&plugin, "").await.unwrap_err().code(), Code::InvalidArgument);
    volumes.record_missing(&["pvc-1".parse().unwrap()].into());
    let missing = [(VolumeHealthErrorType::DataLoss, "Missing")];
    assert_eq!(told(&health(&plugin, "pvc-1").await.unwrap()), missing);
    said.lock().unwrap().refusal = Some(ErrorKind::Busy);
    assert_eq!(told(&health(&plugin, "pvc-1").await.unwrap()), missing);
    assert_eq!(health(&plugin, "pvc-2").await.unwrap_err().code(), Code::Aborted, "nothing is known of it");
    // It is there again, before anybody has counted again.
    said.lock().unwrap().refusal = None;
    assert_eq!(told(&health(&plugin, "pvc-1").await.unwrap()), []);
    said.lock().unwrap().is_snapshot = true;
    assert_eq!(health(&plugin, "pvc-1").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn what_was_measured_last_counts_while_the_volume_is_busy_and_not_once_it_is_deleted() {
    let said = Arc::new(Mutex::new(Said { volume: Some(Condition::Other), ..Said::default() }));
    let fake = helper(&said);
    let (plugin, _) = plugin(&fake);
    let volume_path = "/var/lib/kubelet/pods/0/volumes/kubernetes.io~csi/pvc-1/mount".to_owned();
    let request = NodeGetVolumeStatsRequest { volume_id: "pvc-1".to_owned(), volume_path, ..Default::default() };
    plugin.node_get_volume_stats(Call::new(request)).await.unwrap();
    said.lock().unwrap().refusal = Some(ErrorKind::Busy);
    assert_eq!(told(&health(&plugin, "pvc-1").await.unwrap()), [(VolumeHealthErrorType::Degraded, "Other")]);
    said.lock().unwrap().refusal = Some(ErrorKind::NotFound);
    assert_eq!(health(&plugin, "pvc-1").await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn abnormal_volumes_are_listed_in_pages() {
    let fake = helper(&Arc::default());
    let (plugin, volumes) = plugin(&fake);
    let list = async |max_entries, token: &str| {
        let starting_token = token.to_owned();
        let request = ControllerListVolumeHealthRequest { max_entries, starting_token, ..Default::default() };
        let answer = plugin.controller_list_volume_health(Call::new(request)).await.map(tonic::Response::into_inner);
        answer.map_err(|status| status.code()).map(|page| {
            let ids: Vec<_> = page.entries.iter().map(|health| health.volume_id.clone()).collect();
            (ids, page.next_token)
        })
    };
    assert_eq!(list(0, "").await, Ok((Vec::new(), String::new())));
    let ids: Vec<_> = (10..15).map(|number| format!("pvc-{number}")).collect();
    volumes.record_missing(&ids.iter().map(|id| id.parse().unwrap()).collect::<BTreeSet<VolumeId>>());
    assert_eq!(list(0, "").await, Ok((ids.clone(), String::new())));
    assert_eq!(list(5, "").await, Ok((ids.clone(), String::new())));
    let (first, next) = list(2, "").await.unwrap();
    assert_eq!((first.as_slice(), next.as_str()), (&ids[..2], "PVC-11"));
    assert_eq!(list(3, &next).await, Ok((ids[2..].to_vec(), String::new())));
    volumes.record_missing(&BTreeSet::new());
    assert_eq!(list(3, &next).await, Ok((Vec::new(), String::new())), "they are healthy meanwhile");
    assert_eq!(list(0, "pvc-1").await, Err(Code::Aborted));
    assert_eq!(list(-1, "").await, Err(Code::InvalidArgument));
}

#[tokio::test]
async fn each_condition_of_pools_is_told_once_with_all_that_have_it() {
    use StorageHealthErrorType::{StorageDegraded, StorageUnreachable};
    let said = Arc::new(Mutex::new(Said { pools: vec![Condition::ReadOnly, Condition::QuotasOff], ..Said::default() }));
    let mut fake = helper(&said);
    let (plugin, volumes) = plugin(&fake);
    let kinds = |told: &[(StorageHealthErrorType, String, String)]| {
        told.iter().map(|(status, reason, _)| (*status, reason.clone())).collect::<Vec<_>>()
    };
    let both = [(StorageUnreachable, "ReadOnly".to_owned()), (StorageDegraded, "QuotasOff".to_owned())];
    let found = storage(&plugin).await;
    assert_eq!(kinds(&found), both);
    for pool in ["pool fast: the pool's filesystem has become read-only", "; pool pool-0: "] {
        assert!(found[0].2.contains(pool), "{}", found[0].2);
    }
    // Kubernetes takes no more.
    assert_eq!(found[0].2.len(), 1024);
    fake.kill().await;
    let mut found = storage(&plugin).await;
    found.retain(|(_, reason, _)| reason != "HelperAway");
    assert_eq!((kinds(&found), storage(&plugin).await.len()), (both.to_vec(), 3), "what was known stays as it was");
    said.lock().unwrap().pools = vec![Condition::NotEnforced];
    fake.run();
    tokio::spawn(async move { volumes.watch_health().await });
    let begun = std::time::Instant::now();
    while !storage(&plugin).await.is_empty() {
        assert!(begun.elapsed() < fake::PATIENCE, "{:?}", storage(&plugin).await);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn pools_that_could_not_be_looked_at_yet_are_not_called_healthy() {
    let fake = FakeHelper::start(|request| match request {
        Request::PoolStatus { .. } => Act::Hang,
        _ => done(),
    });
    let request = Call::new(NodeGetStorageHealthRequest::default());
    let status = fake.plugin().node_get_storage_health(request).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{}", status.message());
}
