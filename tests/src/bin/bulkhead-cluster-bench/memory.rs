//! The memory of a frontend, also when other nodes have claims.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bulkhead_tests::cluster::objects::{PROVISIONER, claim, on};
use bulkhead_tests::cluster::{Cluster, manifests};
use bulkhead_tests::observe::processes;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{from_value, json};
use tokio::task::JoinSet;

use crate::LIMIT;

/// Prints the memory of the first agent's frontend.
pub fn print(cluster: &mut Cluster, when: &str) -> Result<()> {
    let frontend = processes::resident(cluster.agent().rig.running_frontend()?.pid())?;
    println!("memory of the frontend {when}: {:.1} MiB", frontend as f64 / 1_048_576.0);
    Ok(())
}

/// Prints the memory of a frontend when another node has this many claims.
pub fn beside_foreign_claims(cluster: &mut Cluster, number: usize) -> Result<()> {
    if number == 0 {
        return Ok(());
    }
    // It would only waste time on them.
    let manager = cluster.access.component("kube-controller-manager");
    manager.hold()?;
    let start = Instant::now();
    cluster.access.run(make_foreign(cluster, number))?;
    println!("{number} foreign claims created in {:.1} s", start.elapsed().as_secs_f64());
    std::thread::sleep(Duration::from_secs(5));
    print(cluster, &format!("as {number} foreign claims were made"))?;
    cluster.agent().rig.restart_frontend()?;
    std::thread::sleep(Duration::from_secs(15));
    print(cluster, &format!("started beside {number} foreign claims"))?;
    manifests::remove(&cluster.access.kubeconfig(), "mutatingadmissionpolicybinding", "bulkhead-claims")?;
    cluster.agent().rig.restart_frontend()?;
    std::thread::sleep(Duration::from_secs(20));
    print(cluster, &format!("started beside {number} foreign claims without the policy"))?;
    manifests::apply_cluster_wide(&cluster.access.kubeconfig())?;
    cluster.wait_until_policies_are_relied_on()?;
    cluster.agent().rig.restart_frontend()?;
    let claims = cluster.claims();
    cluster.access.run(claims.delete_collection(&DeleteParams::default(), &ListParams::default()))?;
    manager.release();
    cluster.access.wait(LIMIT, "the foreign claims to be deleted", || {
        let left = cluster.access.run(claims.list_metadata(&ListParams::default().limit(1)))?.items.len();
        anyhow::ensure!(left == 0, "some are left");
        Ok(())
    })
}

async fn make_foreign(cluster: &Cluster, number: usize) -> Result<()> {
    let claims = cluster.claims();
    let mut creating = JoinSet::new();
    for index in 0..number {
        let mut foreign = on(claim(&format!("foreign-{index}"), &cluster.class, "1Gi"), "elsewhere");
        foreign["metadata"]["annotations"][PROVISIONER] = json!(bulkhead_tests::kubelet::DRIVER);
        let foreign: PersistentVolumeClaim = from_value(foreign)?;
        let claims = claims.clone();
        creating.spawn(async move { claims.create(&PostParams::default(), &foreign).await.map(drop) });
        if creating.len() >= 32 {
            creating.join_next().await.context("a request")???;
        }
    }
    while let Some(created) = creating.join_next().await {
        created??;
    }
    Ok(())
}
