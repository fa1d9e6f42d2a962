//! What a claim costs the API server.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::audit::{self, Request, count};
use bulkhead_tests::cluster::objects::{claim, on};
use serde_json::{json, to_value};

cases! {
    on Cluster;
    each_step_of_a_claims_life_costs_few_requests: Recent + Alone("a request that a busy server answers late is repeated"),
    claims_of_other_nodes_cost_no_requests: Recent,
}

/// How long an agent must make no requests to be considered done. It does not pause between the writes of a step.
const QUIET: Duration = Duration::from_secs(1);

/// The essential requests that the agent makes for `work`.
fn cost(cluster: &Cluster, work: impl FnOnce() -> Result<()>) -> Result<Vec<Request>> {
    let node = cluster.node();
    let before = audit::settled(&cluster.access, &node, QUIET)?.len();
    work()?;
    let mut made = audit::settled(&cluster.access, &node, QUIET)?.split_off(before);
    made.retain(Request::is_essential);
    Ok(made)
}

fn each_step_of_a_claims_life_costs_few_requests(cluster: &mut Cluster) -> Result<()> {
    let cluster = &*cluster;
    let node = cluster.node();
    cluster.capacity(&cluster.class, &node)?;
    cluster.wait_until_policies_are_relied_on()?;
    // The first deletion of an agent looks once at what has no label.
    cluster.create_claim(&on(claim("first", &cluster.class, "16Mi"), &node))?;
    let first = cluster.bound("first")?.metadata.name.context("a name")?;
    cluster.delete_claim("first")?;
    cluster.volume_gone(&first)?;
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
    let lists = count(&deleted).get("list persistentvolumes").copied().unwrap_or_default();
    ensure!(lists == 1, "a deletion lists {lists} times, and not only what is labelled: {:?}", count(&deleted));
    // Each step takes at least one request; otherwise they were not counted. Volumes that are deleted together share the
    // question which objects name them.
    for (what, made, most) in [("provisioned", provisioned, 3), ("grown", grown, 4), ("deleted", deleted, 6)] {
        let (number, made) = (made.len(), count(&made));
        println!("{what}: {number} requests: {made:?}");
        ensure!((1..=most).contains(&number), "a claim is {what} with {number} requests, not 1 to {most}: {made:?}");
    }
    Ok(())
}

fn claims_of_other_nodes_cost_no_requests(cluster: &mut Cluster) -> Result<()> {
    let cluster = &*cluster;
    let node = cluster.node();
    cluster.capacity(&cluster.class, &node)?;
    let mut uids = Vec::new();
    let made = cost(cluster, || {
        for number in 0..20 {
            let foreign = on(claim(&format!("foreign-{number}"), &cluster.class, "4Mi"), "elsewhere");
            uids.push(cluster.create_claim(&foreign)?);
        }
        // A claim of this node is created after them. When it is bound, the agent has seen everything it will ever see
        // of them.
        cluster.create_claim(&on(claim("own", &cluster.class, "4Mi"), &node))?;
        cluster.bound("own").map(drop)
    })?;
    let is_foreign = |request: &&Request| {
        request.name.starts_with("foreign-") || uids.iter().any(|uid| request.name.contains(uid.as_str()))
    };
    let foreign: Vec<&Request> = made.iter().filter(is_foreign).collect();
    ensure!(foreign.is_empty(), "the claims of another node cost {foreign:?}");
    // Nor do they make the node's own claim any more expensive.
    ensure!((1..=3).contains(&made.len()), "a claim beside foreign ones costs {:?}", count(&made));
    Ok(())
}
