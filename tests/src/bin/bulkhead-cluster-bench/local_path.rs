//! The same claims with local-path-provisioner, which starts a pod on the claim's node to make each directory.
//!
//! There is no kubelet here, so each of these pods is reported as succeeded as soon as it is seen: the time that a
//! kubelet needs to start a container would be added to that.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::component::Component;
use bulkhead_tests::cluster::storm::{Wanted, bind_all};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio_stream::StreamExt;

use crate::LIMIT;
use crate::claims::print_times;

/// Names the program.
const PROGRAM: &str = "BULKHEAD_LOCAL_PATH_PROVISIONER";
const NAME: &str = "local-path-provisioner";
const PROVISIONER: &str = "rancher.io/local-path";

/// The claim, when only one is made at a time.
const CLAIM: &str = "data-0";

/// The pod that it starts on a node, to which it adds the work to be done.
const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  name: helper
spec:
  containers:
  - name: helper
    image: none
";

/// Prints the times of claims made one after another, each deleted with its volume before the next.
pub fn alone(cluster: &mut Cluster, number: usize) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    let program = std::env::var_os(PROGRAM).map(PathBuf::from);
    let program = program.with_context(|| format!("${PROGRAM} does not name the program of {NAME}"))?;
    let class = cluster.add_class(|class| {
        class["provisioner"] = json!(PROVISIONER);
        class["allowVolumeExpansion"] = json!(false);
    })?;
    let ours = std::mem::replace(&mut cluster.class, class);
    let _provisioner = Component::start(cluster.access.component(NAME), program, flags(cluster)?)?;
    let pods: Api<Pod> = Api::namespaced(cluster.access.client(), &cluster.namespace);
    let kubelet = cluster.access.spawn(let_succeed(pods));
    let mut times = Vec::new();
    // The first one includes the provisioner's start.
    for index in 0..=number {
        let bound = cluster.access.run(bind_all(cluster, Wanted::EachNode, 1, LIMIT))?;
        times.extend(bound.into_iter().filter(|_| index > 0));
        let volume = cluster.bound(CLAIM)?.metadata.name.context("a name")?;
        cluster.delete_claim(CLAIM)?;
        cluster.volume_gone(&volume)?;
    }
    kubelet.abort();
    cluster.class = ours;
    times.sort();
    print_times(&format!("{number} claims alone, each for a node, by {NAME}"), &times);
    Ok(())
}

fn flags(cluster: &Cluster) -> Result<Vec<String>> {
    let directory = cluster.access.directory();
    let (config, pod) = (directory.join("local-path.json"), directory.join("local-path-pod.yaml"));
    let everywhere = json!({ "node": "DEFAULT_PATH_FOR_NON_LISTED_NODES", "paths": ["/opt/local-path-provisioner"] });
    fs::write(&config, json!({ "nodePathMap": [everywhere] }).to_string())?;
    fs::write(&pod, POD)?;
    let flags = [
        ("--kubeconfig", cluster.access.kubeconfig().display().to_string()),
        ("--namespace", cluster.namespace.clone()),
        ("--service-account-name", "default".to_owned()),
        ("--config", config.display().to_string()),
        ("--helper-pod-file", pod.display().to_string()),
    ];
    let flags = flags.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
    Ok(std::iter::once("start".to_owned()).chain(flags).collect())
}

/// Reports every pod as succeeded, as a kubelet would when its container has ended.
async fn let_succeed(pods: Api<Pod>) {
    let mut seen = Box::pin(watcher(pods.clone(), watcher::Config::default()).default_backoff().applied_objects());
    while let Some(pod) = seen.next().await {
        let Ok(pod) = pod else { continue };
        if pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Pending") {
            let succeeded = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
            // It may have been deleted in the meantime.
            let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &succeeded).await;
        }
    }
}
