//! Many claims at once, and how long each takes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{DeleteParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::{from_value, json};
use tokio::task::JoinSet;
use tokio_stream::StreamExt;

use super::fixture::Cluster;
use super::objects::{PROVISIONER, block, claim, on, volume};

/// Where claims want their volumes.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// On each node in turn, as a scheduler would choose them.
    EachNode,
    /// On any node: the class binds immediately.
    AnyNode {
        /// The name of the class.
        class: &'a str,
    },
}

/// Creates small claims, ten requests at a time, half of them for block volumes, and returns the sorted times from each
/// claim's creation to its binding.
pub async fn bind_all(cluster: &Cluster, wanted: Wanted<'_>, number: usize, limit: Duration) -> Result<Vec<Duration>> {
    let claims = cluster.claims();
    let watched = tokio::spawn(watch_until_bound(claims.clone(), number, limit));
    let mut made = BTreeMap::new();
    for group in (0..number).collect::<Vec<_>>().chunks(10) {
        let mut creating = JoinSet::new();
        for index in group {
            let name = format!("data-{index}");
            let plain = match wanted {
                Wanted::EachNode => {
                    on(claim(&name, &cluster.class, "1Mi"), &cluster.agents[index % cluster.agents.len()].node)
                }
                Wanted::AnyNode { class } => claim(&name, class, "1Mi"),
            };
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

/// Creates a claim of `class`, which no agent serves, and a PersistentVolume for it as soon as the controller manager
/// has handed it over to its provisioner, and returns the time until they are bound. Both are then deleted.
pub async fn bind_by_hand(cluster: &Cluster, class: &str, limit: Duration) -> Result<Duration> {
    let (claims, name) = (cluster.claims(), "by-hand");
    let volumes: Api<PersistentVolume> = Api::all(cluster.access.client());
    let watched = tokio::spawn(watch_until_bound(claims.clone(), 1, limit));
    let start = Instant::now();
    let made = claims.create(&PostParams::default(), &from_value(claim(name, class, "1Mi"))?).await?;
    let is_left = |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| claim.annotations().contains_key(PROVISIONER))
    };
    await_condition(claims.clone(), name, is_left).await?;
    let mut object = volume(&format!("{name}-{}", made.uid().unwrap_or_default()), name, class, "1Mi", "by-hand");
    object["spec"]["csi"]["driver"] = json!("by.hand");
    object["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    object["spec"]["claimRef"] = json!({ "namespace": made.namespace(), "name": name, "uid": made.uid() });
    let object = volumes.create(&PostParams::default(), &from_value(object)?).await?;
    let bound = watched.await??;
    let end = bound.get(name).context("it was not seen")?;
    claims.delete(name, &DeleteParams::default()).await?;
    volumes.delete(&object.name_any(), &DeleteParams::default()).await?;
    while claims.get_opt(name).await?.is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(end.saturating_duration_since(start))
}

/// Returns when each claim was observed to be bound.
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
        // The watch itself retries after a failure.
        let Ok(claim) = event.context("the watch has ended")? else { continue };
        let phase = claim.status.and_then(|status| status.phase);
        if let (Some("Bound"), Some(name)) = (phase.as_deref(), claim.metadata.name) {
            bound.entry(name).or_insert_with(Instant::now);
        }
    }
    Ok(bound)
}
