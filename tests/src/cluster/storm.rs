//! Many claims at once, and how long each takes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Api;
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::from_value;
use tokio::task::JoinSet;
use tokio_stream::StreamExt;

use super::objects::{block, claim, on};
use super::scene::Cluster;

/// Creates small claims for the nodes in turn, ten requests at a time, half of them for block volumes, and returns the
/// sorted times from the creation of each to its binding.
///
/// # Errors
/// When not all are bound within `limit`.
pub async fn bind_all(cluster: &Cluster, number: usize, limit: Duration) -> Result<Vec<Duration>> {
    let claims = cluster.claims();
    let watched = tokio::spawn(watch_until_bound(claims.clone(), number, limit));
    let mut made = BTreeMap::new();
    for group in (0..number).collect::<Vec<_>>().chunks(10) {
        let mut creating = JoinSet::new();
        for index in group {
            let name = format!("data-{index}");
            let plain = on(claim(&name, &cluster.class, "64Ki"), &cluster.agents[index % cluster.agents.len()].node);
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
    let mut bound = BTreeMap::new();
    let events = watcher(claims, watcher::Config::default()).default_backoff().applied_objects();
    let mut events = Box::pin(events);
    let end = tokio::time::Instant::now() + limit;
    while bound.len() < number {
        let next = tokio::time::timeout_at(end, events.next()).await;
        let event = next.with_context(|| format!("{} of {number} claims are bound", bound.len()))?;
        // The watch itself tries again after a failure.
        let Ok(claim) = event.context("the watch has ended")? else { continue };
        let phase = claim.status.and_then(|status| status.phase);
        if let (Some("Bound"), Some(name)) = (phase.as_deref(), claim.metadata.name) {
            bound.entry(name).or_insert_with(Instant::now);
        }
    }
    Ok(bound)
}
