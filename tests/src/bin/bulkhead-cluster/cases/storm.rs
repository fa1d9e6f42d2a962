//! Very many claims on one node at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::audit::{requests, since};
use bulkhead_tests::cluster::objects::{block, claim, on};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::from_value;

cases! {
    on Cluster;
    two_hundred_claims,
    a_thousand_claims: Long,
}

fn two_hundred_claims(cluster: &mut Cluster) -> Result<()> {
    storm(cluster, 200)
}

fn a_thousand_claims(cluster: &mut Cluster) -> Result<()> {
    storm(cluster, 1000)
}

fn storm(cluster: &Cluster, number: usize) -> Result<()> {
    let limit = Duration::from_secs(300);
    let node = cluster.node();
    let before = requests(&cluster.access, Some(&node))?;
    let times = cluster.access.run(bind_all(cluster, number, limit))?;
    let made = since(&before, &requests(&cluster.access, Some(&node))?);
    let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64();
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
    println!("{number} claims deleted and their volumes gone in {:.3} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Makes the claims, ten requests at a time, and gives the sorted times from each one's creation to its binding.
async fn bind_all(cluster: &Cluster, number: usize, limit: Duration) -> Result<Vec<Duration>> {
    let claims = cluster.claims();
    let node = cluster.node();
    let watched = tokio::spawn(watch_until_bound(claims.clone(), number, limit));
    let mut made = BTreeMap::new();
    for group in (0..number).collect::<Vec<_>>().chunks(10) {
        let mut creating = tokio::task::JoinSet::new();
        for index in group {
            let name = format!("data-{index}");
            let plain = on(claim(&name, &cluster.class, "64Ki"), &node);
            let claim: PersistentVolumeClaim = from_value(if index % 2 == 0 { plain } else { block(plain) })?;
            let claims = claims.clone();
            creating.spawn(async move {
                let start = Instant::now();
                claims.create(&PostParams::default(), &claim).await.map(|_| (name, start))
            });
        }
        while let Some(created) = creating.join_next().await {
            let (name, start) = created??;
            made.insert(name, start);
        }
    }
    let bound = watched.await??;
    let mut times = Vec::new();
    for (name, start) in made {
        let end = bound.get(&name).with_context(|| format!("{name} was not seen"))?;
        times.push(end.saturating_duration_since(start));
    }
    times.sort();
    Ok(times)
}

/// When each claim was seen to be bound.
async fn watch_until_bound(
    claims: Api<PersistentVolumeClaim>,
    number: usize,
    limit: Duration,
) -> Result<BTreeMap<String, Instant>> {
    use kube::runtime::{WatchStreamExt, watcher};
    use tokio_stream::StreamExt;
    let mut bound = BTreeMap::new();
    let events = watcher(claims, watcher::Config::default()).default_backoff().applied_objects();
    let mut events = Box::pin(events);
    let end = tokio::time::Instant::now() + limit;
    while bound.len() < number {
        let next = tokio::time::timeout_at(end, events.next()).await;
        let event = next.with_context(|| format!("{} of {number} claims are bound", bound.len()))?;
        let Some(Ok(claim)) = event else { continue };
        let phase = claim.status.and_then(|status| status.phase);
        if let (Some("Bound"), Some(name)) = (phase.as_deref(), claim.metadata.name) {
            bound.entry(name).or_insert_with(Instant::now);
        }
    }
    Ok(bound)
}
