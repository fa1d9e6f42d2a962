//! A node whose operator has limited what one namespace may have of it.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, block, claim, handle, on};
use bulkhead_tests::monitoring;
use bulkhead_tests::rig::Rig;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, from_value, json, to_value};

cases! {
    on Cluster;
    a_namespace_takes_its_share_and_others_are_served: Bare,
    snapshots_count_also_when_their_source_is_gone: Bare,
    a_node_does_not_bid_for_more_than_a_share: Bare,
    a_growth_beyond_the_share_is_infeasible: Bare,
    a_namespace_has_so_many_volumes_and_no_more: Bare,
    a_group_is_taken_whole_or_not_at_all: Bare,
}

const MIB: u64 = 1 << 20;

/// The size of the volumes.
const SIZE: u64 = 16 * MIB;

/// An agent with these flags, and a class.
fn limited(cluster: &mut Cluster, flags: &[&str]) -> Result<()> {
    if cluster.class.is_empty() {
        cluster.class = cluster.add_class(|_| {})?;
    }
    cluster.add_agent_with(|rig| {
        rig.frontend_flags.extend(flags.iter().map(Into::into));
        rig.add_pool("default")
    })?;
    Ok(())
}

/// How much of the pool there is to share out: what is promised, and what may be.
fn room(rig: &Rig) -> Result<u64> {
    match rig.helper()?.ask(&Request::PoolStatus { pool: rig.pool().name.parse()? })? {
        Reply::Pool(status) => Ok(status.promised + status.available),
        other => bail!("{other:?}"),
    }
}

/// A claim for a device, which takes its size and nothing else.
fn device(cluster: &Cluster, name: &str) -> Value {
    on(block(claim(name, &cluster.class, "16Mi")), &cluster.node())
}

/// The names of the claims that are bound.
fn bound(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let claims = cluster.access.run(cluster.claims().list(&ListParams::default()))?.items;
    let is_bound = |claim: &PersistentVolumeClaim| {
        claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
    };
    Ok(claims.into_iter().filter(is_bound).filter_map(|claim| claim.metadata.name).collect())
}

/// What the agent shows of the test's namespace by this name.
fn shown(cluster: &Cluster, metric: &str) -> Result<f64> {
    let (_, text) = monitoring::get(&cluster.agents[0].rig, "/metrics")?;
    let start = format!("{metric}{{pool=\"default\",namespace=\"{}\"}} ", cluster.namespace);
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    Ok(line.with_context(|| format!("no {start}"))?.parse()?)
}

fn a_namespace_takes_its_share_and_others_are_served(cluster: &mut Cluster) -> Result<()> {
    limited(cluster, &["--namespace-share", "25%"])?;
    let most = room(&cluster.agents[0].rig)? / 4;
    let names: Vec<_> = (0..16).map(|number| format!("disk-{number}")).collect();
    for name in &names {
        cluster.create_claim(&device(cluster, name))?;
    }
    let fit = usize::try_from(most / SIZE)?;
    cluster.access.wait(cluster.patience(), "the share to be taken", || {
        let bound = bound(cluster)?;
        ensure!(bound.len() == fit, "{} of {fit} are bound: {bound:?}", bound.len());
        Ok(())
    })?;
    let bound_now = bound(cluster)?;
    for name in names.iter().filter(|name| !bound_now.contains(*name)) {
        cluster.event(name, "ProvisioningFailed", &format!("namespace {} may have", cluster.namespace))?;
    }
    // The scheduler may choose another node, and other namespaces still have this one's room.
    let claims = cluster.access.run(cluster.claims().list(&ListParams::default()))?.items;
    let is_given_back = |claim: &PersistentVolumeClaim| {
        !claim.metadata.annotations.iter().flatten().any(|(name, _)| name == SELECTED_NODE)
    };
    ensure!(claims.iter().any(is_given_back), "none was given back");
    ensure!(cluster.room(&cluster.class, &cluster.node())? > 128 * MIB, "the node's capacity is not for others");
    let other = format!("{}-other", cluster.namespace);
    let namespaces: Api<Namespace> = Api::all(cluster.access.client());
    let namespace = from_value(json!({ "metadata": { "name": other } }))?;
    cluster.access.run(namespaces.create(&Default::default(), &namespace))?;
    let theirs: Api<PersistentVolumeClaim> = Api::namespaced(cluster.access.client(), &other);
    let wanted = on(block(claim("data", &cluster.class, "96Mi")), &cluster.node());
    cluster.access.run(theirs.create(&Default::default(), &from_value(wanted)?))?;
    cluster.access.wait_for(&theirs, "data", cluster.patience(), "to be bound", |claim| {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        ensure!(phase == Some("Bound"), "its phase is {phase:?}");
        Ok(())
    })?;
    // An agent that starts anew knows it by the notes.
    cluster.agent().rig.restart_frontend()?;
    cluster.create_claim(&device(cluster, "late"))?;
    cluster.event("late", "ProvisioningFailed", "may have")?;
    cluster.access.wait(cluster.patience(), "the figures to be shown", || {
        let figures =
            ["promised_bytes", "volumes", "share_used_ratio"].map(|name| format!("bulkhead_namespace_{name}"));
        let [bytes, volumes, ratio] = figures.each_ref().map(|name| shown(cluster, name));
        let found = (bytes?, volumes?, ratio?);
        let wanted = fit as f64 * SIZE as f64;
        ensure!(
            found.0 == wanted && found.1 == fit as f64 && (0.8..=1.0).contains(&found.2),
            "{found:?}, not {wanted}"
        );
        Ok(())
    })?;
    // What is deleted is had again.
    cluster.delete_claim(bound_now.first().context("a claim")?)?;
    cluster.access.wait(cluster.patience(), "another claim to get the room", || {
        let now = bound(cluster)?;
        ensure!(now.difference(&bound_now).count() == 1, "{now:?}");
        Ok(())
    })?;
    cluster.access.run(namespaces.delete(&other, &Default::default()))?;
    cluster.access.wait_until_gone(&namespaces, &other, cluster.patience())
}

fn snapshots_count_also_when_their_source_is_gone(cluster: &mut Cluster) -> Result<()> {
    limited(cluster, &["--namespace-share", "25%"])?;
    let class = cluster.add_snapshot_class("daily", |_| {})?;
    let most = room(&cluster.agents[0].rig)? / 4;
    cluster.create_claim(&device(cluster, "data"))?;
    let volume = cluster.bound("data")?.metadata.name.context("a name")?;
    let image = cluster.agents[0].rig.pool().volume(handle(&volume)).join("image");
    let image = OpenOptions::new().write(true).open(image)?;
    image.write_all_at(&vec![1; usize::try_from(SIZE)?], 0)?;
    image.sync_all()?;
    // All of it is written, so that a snapshot takes as much as the volume, and a hundredth.
    let taken = SIZE + SIZE / 100 + 8192;
    let fit = usize::try_from((most - SIZE) / taken)?;
    let names: Vec<_> = (0..fit + 3).map(|number| format!("snap-{number}")).collect();
    for name in &names {
        cluster.snapshot(name, "data", &class)?;
    }
    let ready = |is_told: bool| -> Result<usize> {
        let found = cluster.ask("GET", &cluster.snapshots(), None)?;
        let all = found["items"].as_array().context("no list")?;
        let ready = all.iter().filter(|snapshot| snapshot["status"]["readyToUse"] == true).count();
        let says = |snapshot: &&Value| {
            snapshot["status"]["error"]["message"].as_str().is_some_and(|message| message.contains("may have"))
        };
        let refused = all.iter().filter(says).count();
        ensure!(!is_told || ready + refused == names.len(), "{ready} are ready, {refused} refused");
        Ok(ready)
    };
    cluster.access.wait(cluster.patience(), "all snapshots to be taken or refused", || {
        let found = ready(true)?;
        ensure!(found == fit, "{found} are ready, not {fit}");
        Ok(())
    })?;
    // The namespace has no room for a claim, also once the volume is gone and the agent has started anew. A volume stays as
    // long as snapshots of it wait.
    let found = cluster.ask("GET", &cluster.snapshots(), None)?;
    let waiting = found["items"].as_array().into_iter().flatten().filter(|one| one["status"]["readyToUse"] != true);
    for name in waiting.filter_map(|snapshot| snapshot["metadata"]["name"].as_str()) {
        cluster.delete_snapshot(name)?;
    }
    cluster.delete_claim("data")?;
    cluster.access.wait(cluster.patience(), "the volume to be deleted", || {
        let volumes = cluster.agents[0].volumes()?;
        ensure!(!volumes.iter().any(|name| name.starts_with("pvc-")), "{volumes:?}");
        Ok(())
    })?;
    cluster.agent().rig.restart_frontend()?;
    let larger = on(block(claim("larger", &cluster.class, "40Mi")), &cluster.node());
    cluster.create_claim(&larger)?;
    cluster.event("larger", "ProvisioningFailed", "may have")?;
    cluster.ask("DELETE", &cluster.snapshots(), None)?;
    cluster.access.wait(cluster.patience(), "the snapshots to be deleted", || {
        let left = cluster.agents[0].volumes()?;
        ensure!(!left.iter().any(|name| name.starts_with("snapshot-")), "{left:?}");
        Ok(())
    })
}

fn a_node_does_not_bid_for_more_than_a_share(cluster: &mut Cluster) -> Result<()> {
    for _ in 0..2 {
        limited(cluster, &["--namespace-share", "25%", "--divide-intervals", "10"])?;
    }
    let nodes: Vec<_> = cluster.agents.iter().map(|agent| agent.node.clone()).collect();
    let class = cluster.add_class(|class| {
        class["volumeBindingMode"] = json!("Immediate");
        let wanted = json!([{ "key": TOPOLOGY_KEY, "values": nodes }]);
        class["allowedTopologies"] = json!([{ "matchLabelExpressions": wanted }]);
    })?;
    for node in &nodes {
        cluster.capacity(&class, node)?;
    }
    let mut taken = BTreeSet::new();
    for name in ["first", "second"] {
        cluster.create_claim(&block(claim(name, &class, "80Mi")))?;
        let labels = cluster.bound(name)?.metadata.labels.context("labels")?;
        taken.insert(labels.get(TOPOLOGY_KEY).cloned());
    }
    ensure!(taken.len() == 2, "both are on {taken:?}");
    cluster.create_claim(&block(claim("third", &class, "80Mi")))?;
    cluster.event("third", "ProvisioningFailed", "may have")?;
    let third = cluster.access.run(cluster.claims().get("third"))?;
    let annotations = third.metadata.annotations.unwrap_or_default();
    ensure!(!annotations.contains_key(SELECTED_NODE), "a node has taken it: {annotations:?}");
    Ok(())
}

fn a_growth_beyond_the_share_is_infeasible(cluster: &mut Cluster) -> Result<()> {
    limited(cluster, &["--namespace-share", "25%"])?;
    cluster.create_claim(&device(cluster, "data"))?;
    cluster.bound("data")?;
    let ask = |size: &str| {
        cluster.patch_claim("data", &json!({ "spec": { "resources": { "requests": { "storage": size } } } }))
    };
    ask("200Mi")?;
    cluster.event("data", "VolumeResizeFailed", "may have")?;
    ask("64Mi")?;
    cluster.access.wait_for(&cluster.claims(), "data", cluster.patience(), "to have grown", |claim| {
        let status = to_value(&claim.status)?;
        ensure!(status["capacity"]["storage"] == "64Mi", "its status is {status}");
        Ok(())
    })?;
    Ok(())
}

fn a_namespace_has_so_many_volumes_and_no_more(cluster: &mut Cluster) -> Result<()> {
    limited(cluster, &["--namespace-volumes", "2"])?;
    for name in ["first", "second"] {
        cluster.create_claim(&on(claim(name, &cluster.class, "1Mi"), &cluster.node()))?;
        cluster.bound(name)?;
    }
    cluster.create_claim(&on(claim("third", &cluster.class, "1Mi"), &cluster.node()))?;
    cluster.event("third", "ProvisioningFailed", "may have 2 volumes and snapshots").map(drop)
}

fn a_group_is_taken_whole_or_not_at_all(cluster: &mut Cluster) -> Result<()> {
    // One snapshot more, and not two.
    limited(cluster, &["--namespace-volumes", "3"])?;
    let class = cluster.add_group_class("together", |_| {})?;
    for name in ["data", "log"] {
        let mut device = device(cluster, name);
        device["metadata"]["labels"] = json!({ "app": "shop" });
        cluster.create_claim(&device)?;
        cluster.bound(name)?;
    }
    cluster.group("evening", "shop", &class)?;
    cluster.group_failed("evening", "may have 3 volumes and snapshots")?;
    let found = cluster.agents[0].volumes()?;
    ensure!(found.len() == 2, "a part of it was taken: {found:?}");
    cluster.delete_group("evening")
}
