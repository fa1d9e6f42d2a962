//! What a claim costs the API server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::audit::{Requests, essential, requests, since};
use bulkhead_tests::cluster::objects::{claim, on};
use serde_json::{json, to_value};

cases! {
    on Cluster;
    few_for_each_step_of_a_claims_life,
    none_without_work,
}

/// What the agent asked for while `work` was done, and what followed at once.
fn cost(cluster: &Cluster, work: impl FnOnce() -> Result<()>) -> Result<Requests> {
    let node = cluster.node();
    std::thread::sleep(Duration::from_secs(2));
    let before = requests(&cluster.access, Some(&node))?;
    work()?;
    std::thread::sleep(Duration::from_secs(2));
    Ok(since(&before, &requests(&cluster.access, Some(&node))?))
}

fn few_for_each_step_of_a_claims_life(cluster: &mut Cluster) -> Result<()> {
    let cluster = &*cluster;
    let node = cluster.node();
    cluster.capacity(&cluster.class, &node)?;
    std::thread::sleep(Duration::from_secs(5));
    let provisioned = cost(cluster, || {
        cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &node))?;
        cluster.bound("data").map(drop)
    })?;
    let grown = cost(cluster, || {
        cluster.patch_claim("data", &json!({ "spec": { "resources": { "requests": { "storage": "32Mi" } } } }))?;
        cluster.access.wait_for(&cluster.claims(), "data", cluster.patience(), "to have grown", |claim| {
            let status = to_value(&claim.status)?;
            ensure!(status["capacity"]["storage"] == "32Mi", "its status is {status}");
            Ok(())
        })?;
        Ok(())
    })?;
    let name = cluster.bound("data")?.metadata.name.context("a name")?;
    let deleted = cost(cluster, || {
        cluster.delete_claim("data")?;
        cluster.volume_gone(&name)
    })?;
    for (what, made, most) in [("provisioned", provisioned, 3), ("grown", grown, 4), ("deleted", deleted, 2)] {
        println!("{what}: {} requests: {made:?}", essential(&made));
        ensure!(essential(&made) <= most, "a claim that is {what} costs more than {most} requests: {made:?}");
    }
    Ok(())
}

fn none_without_work(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.capacity(&cluster.class, &node)?;
    // What a start causes is done by then.
    std::thread::sleep(Duration::from_secs(10));
    let made = cost(cluster, || {
        for number in 0..20 {
            cluster.create_claim(&on(claim(&format!("foreign-{number}"), &cluster.class, "4Mi"), "elsewhere"))?;
        }
        std::thread::sleep(Duration::from_secs(3));
        Ok(())
    })?;
    // The filesystem may have told of itself meanwhile.
    ensure!(essential(&made) == 0, "the claims of another node cost {made:?}");
    Ok(())
}
