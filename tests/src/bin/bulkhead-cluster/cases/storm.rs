//! Many claims on one node at once.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bulkhead_tests::bench::percentile;
use bulkhead_tests::cases;
use bulkhead_tests::cluster::audit::{requests, since};
use bulkhead_tests::cluster::{Cluster, node, storm};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

cases! {
    on Cluster;
    two_hundred_claims_are_bound_and_deleted,
    a_thousand_claims_are_bound_and_deleted: Long + Alone("takes all of the control plane's time"),
}

fn two_hundred_claims_are_bound_and_deleted(cluster: &mut Cluster) -> Result<()> {
    measure(cluster, 200)
}

fn a_thousand_claims_are_bound_and_deleted(cluster: &mut Cluster) -> Result<()> {
    // A pool does not have a mebibyte for each of them, so these volumes are sparse and the pool is overcommitted.
    let small = cluster.agents.remove(0);
    small.rig.finish()?;
    node::delete(&cluster.access, &small.node)?;
    cluster.class = cluster.add_class(|class| class["parameters"] = json!({ "sparse": "true" }))?;
    cluster.add_agent_with(|rig| {
        rig.add_pool("default")?;
        rig.pools[0].options.push_str(",overcommit=100");
        Ok(())
    })?;
    measure(cluster, 1000)
}

fn measure(cluster: &Cluster, number: usize) -> Result<()> {
    let limit = Duration::from_secs(300);
    let node = cluster.node();
    let before = requests(&cluster.access, Some(&node))?;
    let times = cluster.access.run(storm::bind_all(cluster, storm::Wanted::EachNode, number, limit))?;
    let made = since(&before, &requests(&cluster.access, Some(&node))?);
    let at = |percent| percentile(&times, percent).as_secs_f64();
    println!("{number} claims bound: p50 {:.3} s, p99 {:.3} s, last {:.3} s", at(50), at(99), at(100));
    println!("requests: {made:?}");
    ensure!(cluster.agents[0].volumes()?.len() == number, "the pool does not hold {number} volumes");
    let start = Instant::now();
    let claims = cluster.claims();
    cluster.access.run(claims.delete_collection(&DeleteParams::default(), &ListParams::default()))?;
    cluster.access.wait(limit, "all volumes to be deleted", || {
        let found = cluster.agents[0].volumes()?.len();
        ensure!(found == 0, "{found} are left");
        Ok(())
    })?;
    println!("{number} claims and their volumes deleted in {:.3} s", start.elapsed().as_secs_f64());
    Ok(())
}
