//! `kubectl bulkhead adopt`: volumes whose objects are gone are brought back, by what is noted on them.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::Request;
use bulkhead_tests::cases;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::network::POD_ADDRESS;
use bulkhead_tests::cluster::objects::{PROVISIONER, SELECTED_NODE, block, claim, handle, on};
use bulkhead_tests::cluster::{Cluster, node};
use bulkhead_tests::commands::{Printed, bulkheadctl};
use bulkhead_tests::csi::requests;
use bulkhead_tests::helper::volume as volume_id;
use bulkhead_tests::monitoring;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json, to_value};

use super::plugin::{agent_pod, as_json, plugin};

cases! {
    on Cluster;
    claims_come_back_after_etcd_was_lost: Bare,
    a_claim_that_lost_its_volume_is_bound_again: Bare,
    a_claim_made_anew_gets_its_volume_and_another_does_not: Bare,
    a_block_volume_comes_back_from_a_file: Bare,
    volumes_come_back_any_number_of_times: Bare,
    a_disk_in_another_node_takes_its_claims_along: Bare,
    an_orphan_of_another_cluster_is_kept,
    a_thousand_volumes_come_back: Bare + Long,
}

/// Starts an agent whose node the plugin can reach once it has a pod, and returns the class of its claims.
pub fn agent(cluster: &mut Cluster) -> Result<String> {
    let class = cluster.add_class(|_| {})?;
    cluster.add_agent_with(|rig| {
        monitoring::serve_at(rig, &format!("{POD_ADDRESS}:0"));
        rig.frontend_flags.push(monitoring::WITH_OWNERS.into());
        rig.add_pool("default")
    })?;
    Ok(class)
}

/// Makes the first agent's pod, as its kubelet would report it.
pub fn reachable(cluster: &Cluster) -> Result<()> {
    let address: SocketAddr = monitoring::address(&cluster.agents[0].rig)?.parse()?;
    agent_pod(cluster, NAMESPACE, address.port(), true)
}

/// Makes a claim, writes into its volume as a pod would, and returns the volume and the file.
pub fn filled(cluster: &mut Cluster, name: &str, class: &str) -> Result<(String, PathBuf)> {
    let (volume, target) = in_use(cluster, name, class)?;
    let rig = &cluster.agents[0].rig;
    rig.csi()?.node_unpublish_volume(requests::unpublish(&volume, &target))?;
    let file = rig.pool().volume(&volume).join("data/file");
    Ok((volume, file))
}

/// Makes a claim, writes into its volume as a pod would that goes on running, and returns the volume and the target.
pub fn in_use(cluster: &Cluster, name: &str, class: &str) -> Result<(String, PathBuf)> {
    cluster.create_claim(&on(claim(name, class, "8Mi"), &cluster.node()))?;
    let object = cluster.bound(name)?.metadata.name.context("a name")?;
    let volume = handle(&object).to_owned();
    let rig = &cluster.agents[0].rig;
    let target = rig.kubelet.prepare(&volume, &object, name)?;
    rig.csi()?.node_publish_volume(requests::publish(&volume, &target, requests::mount()))?;
    fs::write(target.join("file"), content(name))?;
    Ok((volume, target))
}

/// The name of the object that the agent made for a volume.
fn object_of(volume: &str, node: &str) -> String {
    format!("{volume}.{node}")
}

/// Returns what is written into the volume of the claim of that name.
pub fn content(name: &str) -> String {
    format!("the data of {name}\n").repeat(1000)
}

/// Waits until whose it is has been noted on each of these volumes.
pub fn noted(cluster: &Cluster, volumes: &[&str]) -> Result<()> {
    let node = cluster.node();
    cluster.access.wait(cluster.patience(), "whose the volumes are to be noted", || {
        let (_, page) = monitoring::get(&cluster.agents[0].rig, "/volumes/owners")?;
        let page: Value = serde_json::from_str(&page).with_context(|| page.clone())?;
        let found = page["volumes"].as_array().context("no volumes")?;
        let is_noted = |volume: &&str| {
            found.iter().any(|one| one["volume"] == **volume && one["owner"]["pv"] == object_of(volume, &node))
        };
        ensure!(volumes.iter().all(is_noted), "{page}");
        Ok(())
    })
}

/// Removes a volume's object with whatever holds it, as if it had never been.
fn forget_volume(cluster: &Cluster, volume: &str) -> Result<()> {
    let name = &object_of(volume, &cluster.node());
    let bare = json!({ "metadata": { "finalizers": null }, "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
    cluster.patch_volume(name, &bare)?;
    cluster.access.run(cluster.volumes().delete(name, &DeleteParams::default()))?;
    // The control plane may have added its own again.
    let _ = cluster.patch_volume(name, &json!({ "metadata": { "finalizers": null } }));
    cluster.volume_gone(name)
}

fn forget_claim(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.delete_claim(name)?;
    let _ = cluster.patch_claim(name, &json!({ "metadata": { "finalizers": null } }));
    cluster.access.wait_until_gone(&cluster.claims(), name, cluster.patience())
}

/// Returns what `adopt` says of a volume, by its state and its reason.
fn said<'v>(report: &'v Value, volume: &str) -> Result<(&'v str, &'v str)> {
    let found = report["volumes"].as_array().and_then(|all| all.iter().find(|one| one["volume"] == volume));
    let found = found.with_context(|| format!("{volume} is not in {report}"))?;
    Ok((found["state"].as_str().unwrap_or_default(), found["reason"].as_str().unwrap_or_default()))
}

pub fn is_in_state(report: &Value, volume: &str, state: &str) -> Result<()> {
    let said = said(report, volume)?;
    ensure!(said.0 == state, "{volume} is not {state}: {said:?}");
    Ok(())
}

/// `adopt` on the first agent's node, with more arguments.
pub fn adopt(cluster: &Cluster, more: &[&str]) -> Result<Value> {
    let node = cluster.node();
    as_json(cluster, &[&["adopt", "--node", &node], more].concat())
}

/// An adopted claim grows, as any other does.
fn grows(cluster: &Cluster, name: &str) -> Result<()> {
    cluster.patch_claim(name, &json!({ "spec": { "resources": { "requests": { "storage": "24Mi" } } } }))?;
    cluster.access.wait_for(&cluster.claims(), name, cluster.patience(), "to have grown", |claim| {
        let status = to_value(&claim.status)?;
        ensure!(status["capacity"]["storage"] == "24Mi", "its status is {status}, {:?}", claim.metadata.annotations);
        Ok(())
    })?;
    Ok(())
}

/// Lets volumes that were adopted go with their claims.
pub fn let_go(cluster: &Cluster) -> Result<()> {
    let listed = cluster.access.run(cluster.volumes().list(&ListParams::default()))?;
    for object in listed.items {
        let claim = object.spec.and_then(|spec| spec.claim_ref);
        if claim.and_then(|claim| claim.namespace).as_ref() == Some(&cluster.namespace) {
            let name = object.metadata.name.context("a name")?;
            cluster.patch_volume(&name, &json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } }))?;
        }
    }
    Ok(())
}

fn claims_come_back_after_etcd_was_lost(cluster: &mut Cluster) -> Result<()> {
    let class = agent(cluster)?;
    reachable(cluster)?;
    let node = cluster.node();
    let (first, first_file) = filled(cluster, "first", &class)?;
    let (second, second_file) = filled(cluster, "second", &class)?;
    let (garbled, garbled_file) = filled(cluster, "garbled", &class)?;
    cluster.create_claim(&on(claim("unused", &class, "8Mi"), &node))?;
    let unused = handle(&cluster.bound("unused")?.metadata.name.context("a name")?).to_owned();
    let volumes = [&first, &second, &garbled, &unused].map(String::as_str);
    noted(cluster, &volumes)?;
    ensure!(
        volumes
            .iter()
            .all(|volume| said(&adopt(cluster, &[]).unwrap_or_default(), volume).is_ok_and(|said| said.0 == "there"))
    );

    cluster.agent().rig.kill_frontend()?;
    for (volume, claim) in volumes.iter().zip(["first", "second", "garbled", "unused"]) {
        forget_volume(cluster, volume)?;
        forget_claim(cluster, claim)?;
    }
    let odd = "bulkhead-owner=1\nclaim=%ZZ\n".parse().map_err(|error| anyhow::anyhow!("{error}"))?;
    cluster.agents[0].rig.helper()?.ask(&Request::SetOwner { volume: volume_id(&garbled), owner: odd })?;
    // Somebody was faster than the administrator.
    cluster.create_claim(&on(claim("second", &class, "8Mi"), &node))?;
    cluster.agent().rig.start_frontend()?;
    let usurper = cluster.bound("second")?.metadata.name.context("a name")?;
    // The pod has to name the new agent's port.
    let pods: kube::Api<k8s_openapi::api::core::v1::Pod> = kube::Api::namespaced(cluster.access.client(), NAMESPACE);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    cluster.access.run(pods.delete(&node, &now))?;
    cluster.access.wait_until_gone(&pods, &node, cluster.patience())?;
    reachable(cluster)?;

    let dry = adopt(cluster, &["--with-claims"])?;
    is_in_state(&dry, &first, "adopt")?;
    is_in_state(&dry, &second, "conflict")?;
    is_in_state(&dry, &garbled, "skip")?;
    ensure!(said(&dry, &second)?.1.contains(&format!("has another volume, {usurper}")), "{dry}");
    ensure!(said(&dry, &garbled)?.1.contains("line 2 is not KEY=VALUE"), "{dry}");
    ensure!(dry["items"].as_array().is_some_and(|items| items.len() == 2), "an object and a claim: {dry}");
    ensure!(
        cluster.access.run(cluster.volumes().get_opt(&object_of(&first, &node)))?.is_none(),
        "a dry run has changed something"
    );
    let table = plugin(cluster, &["adopt", "--node", &node])?.succeeded()?;
    Printed::row(&table, &["adopt", &node, &first, &format!("{}/first", cluster.namespace), "8 MiB"])?;
    ensure!(table.contains("nothing has been changed: repeat with --apply"), "{table}");

    let done = adopt(cluster, &["--apply", "--with-claims"])?;
    is_in_state(&done, &first, "adopted")?;
    let object = cluster.bound("first")?;
    ensure!(object.metadata.name == Some(object_of(&first, &node)), "the claim has another object");
    cluster.delete_claim("second")?;
    cluster.volume_gone(&usurper)?;
    let whose = format!("{}/garbled", cluster.namespace);
    let done = adopt(cluster, &["--apply", "--with-claims", "--class", &class, "--claim", &whose, &garbled])?;
    is_in_state(&done, &garbled, "adopted")?;
    let done = adopt(cluster, &["--apply", "--with-claims"])?;
    is_in_state(&done, &second, "adopted")?;
    for (name, file) in [("first", &first_file), ("second", &second_file), ("garbled", &garbled_file)] {
        cluster.bound(name)?;
        ensure!(fs::read_to_string(file)? == content(name), "the data of {name} is not what it was");
        grows(cluster, name)?;
    }
    let again = adopt(cluster, &["--apply", "--with-claims"])?;
    for volume in [&first, &second, &garbled] {
        is_in_state(&again, volume, "there")?;
    }
    ensure!(again["items"] == json!([]), "a second run has made something: {again}");
    let_go(cluster)
}

fn a_claim_that_lost_its_volume_is_bound_again(cluster: &mut Cluster) -> Result<()> {
    let class = agent(cluster)?;
    reachable(cluster)?;
    let (volume, file) = filled(cluster, "data", &class)?;
    noted(cluster, &[&volume])?;
    let before = cluster.access.run(cluster.claims().get("data"))?.metadata.uid;
    forget_volume(cluster, &volume)?;
    cluster.access.wait_for(&cluster.claims(), "data", cluster.patience(), "to be lost", |claim| {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        ensure!(phase == Some("Lost"), "its phase is {phase:?}");
        Ok(())
    })?;
    // Without an agent's pod, the administrator saves what the node says.
    let socket = cluster.agents[0].rig.kubelet.csi_socket();
    let exported = Printed::by(bulkheadctl(&socket)?.args(["volume", "export"]))?.succeeded()?;
    let saved = cluster.agents[0].rig.work().join("exported");
    let saved = saved.to_string_lossy().into_owned();
    // One of yesterday may name volumes that were deleted since.
    fs::write(&saved, aged(&exported)?)?;
    let refused = plugin(cluster, &["adopt", "--from", &saved, "--apply"])?.failed()?;
    ensure!(refused.contains(", 26 h ago: volumes may have been deleted since"), "{refused}");
    let dry = as_json(cluster, &["adopt", "--from", &saved])?;
    is_in_state(&dry, &volume, "adopt")?;
    ensure!(dry["notes"][0].as_str().is_some_and(|note| note.contains("--allow-old")), "{dry}");
    fs::write(&saved, exported)?;
    let begun = Instant::now();
    let done = as_json(cluster, &["adopt", "--from", &saved, "--apply"])?;
    is_in_state(&done, &volume, "adopted")?;
    let object = cluster.bound("data")?;
    println!("bound again after {:?}", begun.elapsed());
    ensure!(object.spec.and_then(|spec| spec.claim_ref).and_then(|claim| claim.uid) == before, "another claim");
    ensure!(fs::read_to_string(file)? == content("data"), "the data is not what it was");
    grows(cluster, "data")?;
    let_go(cluster)
}

/// Returns what was exported, as if that had been on the day before.
fn aged(exported: &str) -> Result<String> {
    let mut lines = String::new();
    for line in exported.lines() {
        let mut volume: Value = serde_json::from_str(line)?;
        ensure!(volume["release"] == env!("CARGO_PKG_VERSION") && volume["node"].is_string(), "{volume}");
        let written: Timestamp = volume["exportedAt"].as_str().context("no time")?.parse()?;
        volume["exportedAt"] = json!((written - SignedDuration::from_hours(26)).to_string());
        lines += &format!("{volume}\n");
    }
    Ok(lines)
}

fn a_block_volume_comes_back_from_a_file(cluster: &mut Cluster) -> Result<()> {
    let class = agent(cluster)?;
    reachable(cluster)?;
    let node = cluster.node();
    cluster.create_claim(&on(block(claim("disk", &class, "8Mi")), &node))?;
    let object = cluster.bound("disk")?.metadata.name.context("a name")?;
    let volume = handle(&object).to_owned();
    let rig = &cluster.agents[0].rig;
    let target = rig.kubelet.prepare_block(&volume, &object, "disk")?;
    let csi = rig.csi()?;
    csi.node_publish_volume(requests::publish(&volume, &target, requests::block()))?;
    fs::OpenOptions::new().write(true).open(&target)?.write_all(content("disk").as_bytes())?;
    csi.node_unpublish_volume(requests::unpublish(&volume, &target))?;
    noted(cluster, &[&volume])?;
    forget_volume(cluster, &volume)?;
    forget_claim(cluster, "disk")?;

    let socket = cluster.agents[0].rig.kubelet.csi_socket();
    let exported = Printed::by(bulkheadctl(&socket)?.args(["volume", "export"]))?.succeeded()?;
    let line: Value = serde_json::from_str(exported.lines().next().context("no line")?)?;
    ensure!(line["block"] == true && line["everPublished"] == true && line["owner"]["pv"] == object, "{line}");
    let saved = cluster.agents[0].rig.work().join("exported").to_string_lossy().into_owned();
    // The administrator knows that nothing was deleted since yesterday.
    fs::write(&saved, aged(&exported)?)?;
    let done = as_json(cluster, &["adopt", "--from", &saved, "--apply", "--with-claims", "--allow-old"])?;
    is_in_state(&done, &volume, "adopted")?;
    let made = cluster.bound("disk")?.spec.context("a specification")?;
    ensure!(made.volume_mode.as_deref() == Some("Block"), "{:?}", made.volume_mode);
    let claim = cluster.access.run(cluster.claims().get("disk"))?.spec.context("a specification")?;
    ensure!(claim.volume_mode.as_deref() == Some("Block"), "{:?}", claim.volume_mode);
    let image = fs::read(cluster.agents[0].rig.pool().volume(&volume).join("image"))?;
    ensure!(image.starts_with(content("disk").as_bytes()), "the data is not what it was");
    grows(cluster, "disk")?;
    let_go(cluster)
}

fn a_claim_made_anew_gets_its_volume_and_another_does_not(cluster: &mut Cluster) -> Result<()> {
    let class = agent(cluster)?;
    reachable(cluster)?;
    let (volume, file) = filled(cluster, "data", &class)?;
    noted(cluster, &[&volume])?;
    forget_volume(cluster, &volume)?;
    forget_claim(cluster, "data")?;
    let done = adopt(cluster, &["--apply"])?;
    is_in_state(&done, &volume, "adopted")?;
    // A StatefulSet makes its claim anew, for which no node is selected yet; another claim waits as well.
    for name in ["other", "data"] {
        cluster.create_claim(&claim(name, &class, "8Mi"))?;
    }
    let object = cluster.bound("data")?;
    ensure!(object.metadata.name == Some(object_of(&volume, &cluster.node())), "the claim has another volume");
    cluster.stays_pending("other", Duration::from_secs(2))?;
    let marked = adopt(cluster, &["--apply"])?;
    is_in_state(&marked, &volume, "marked")?;
    let annotations = cluster.access.run(cluster.claims().get("data"))?.metadata.annotations.unwrap_or_default();
    ensure!(annotations.contains_key(SELECTED_NODE) && annotations.contains_key(PROVISIONER), "{annotations:?}");
    is_in_state(&adopt(cluster, &["--apply"])?, &volume, "there")?;
    ensure!(fs::read_to_string(file)? == content("data"), "the data is not what it was");
    grows(cluster, "data")?;
    let_go(cluster)
}

/// Etcd is lost three times. In between one volume is given to another claim, as a volume populator or the restore of a
/// backup does.
fn volumes_come_back_any_number_of_times(cluster: &mut Cluster) -> Result<()> {
    let class = agent(cluster)?;
    reachable(cluster)?;
    let (stays, stays_file) = filled(cluster, "stays", &class)?;
    let (moves, moves_file) = filled(cluster, "moves-0", &class)?;
    for round in 0..3 {
        let (before, after) = (format!("moves-{round}"), format!("moves-{}", round + 1));
        noted_for(cluster, &stays, "stays")?;
        noted_for(cluster, &moves, &before)?;
        let object = object_of(&moves, &cluster.node());
        cluster.patch_volume(&object, &json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }))?;
        forget_claim(cluster, &before)?;
        cluster.patch_volume(&object, &json!({ "spec": { "claimRef": null } }))?;
        let mut next = claim(&after, &class, "8Mi");
        next["spec"]["volumeName"] = json!(object);
        cluster.create_claim(&next)?;
        cluster.bound(&after)?;
        noted_for(cluster, &moves, &after)?;
        for (volume, claim) in [(&stays, "stays"), (&moves, after.as_str())] {
            forget_volume(cluster, volume)?;
            forget_claim(cluster, claim)?;
        }
        let done = adopt(cluster, &["--apply", "--with-claims"])?;
        is_in_state(&done, &stays, "adopted")?;
        is_in_state(&done, &moves, "adopted")?;
        for claim in ["stays", &after] {
            cluster.bound(claim)?;
        }
    }
    for (name, file) in [("stays", &stays_file), ("moves-0", &moves_file)] {
        ensure!(fs::read_to_string(file)? == content(name), "the data of {name} is not what it was");
    }
    let_go(cluster)
}

/// Waits until the note on a volume is about that claim as it is now.
fn noted_for(cluster: &Cluster, volume: &str, claim: &str) -> Result<()> {
    let uid = cluster.access.run(cluster.claims().get(claim))?.metadata.uid;
    cluster.access.wait(cluster.patience(), "whose the volume is to be noted", || {
        let (_, page) = monitoring::get(&cluster.agents[0].rig, "/volumes/owners")?;
        let page: Value = serde_json::from_str(&page).with_context(|| page.clone())?;
        let found = page["volumes"].as_array().context("no volumes")?;
        let owner = &found.iter().find(|one| one["volume"] == volume).context("no such volume")?["owner"];
        ensure!(
            owner["claim"] == format!("{}/{claim}", cluster.namespace) && owner["claim-uid"] == json!(uid),
            "{owner}"
        );
        Ok(())
    })
}

fn a_disk_in_another_node_takes_its_claims_along(cluster: &mut Cluster) -> Result<()> {
    let class = agent(cluster)?;
    let (volume, file) = filled(cluster, "data", &class)?;
    noted(cluster, &[&volume])?;
    let former = cluster.node();
    // The same disk, below a node of another name.
    cluster.agent().rig.kill_frontend()?;
    let name = format!("{former}-new");
    let uid = node::make(&cluster.access, &name, &[])?;
    let access = &cluster.access;
    let agent = &mut cluster.agents[0];
    (agent.node, agent.uid) = (name.clone(), uid);
    agent.rig.node = name.clone();
    agent.renew_token(access, Duration::from_secs(3600))?;
    agent.rig.start_frontend()?;
    reachable(cluster)?;

    let asked = adopt(cluster, &["--apply"])?;
    is_in_state(&asked, &volume, "conflict")?;
    ensure!(said(&asked, &volume)?.1.contains(&format!("--replace-from {former}")), "{asked}");
    // The former node exists, and nobody can tell that it has not the volume any more.
    let replacing = ["--apply", "--replace-from", &former];
    let refused = adopt(cluster, &replacing)?;
    ensure!(
        refused["volumes"] == json!([])
            && refused["notes"][0].as_str().is_some_and(|note| note.contains("nothing is replaced")),
        "{refused}"
    );
    node::delete(&cluster.access, &former)?;
    nothing_is_given_up_that_was_found(cluster, &volume, &former)?;
    let done = adopt(cluster, &replacing)?;
    is_in_state(&done, &volume, "adopted")?;
    let object = cluster.bound("data")?;
    let labels = object.metadata.labels.unwrap_or_default();
    ensure!(
        object.metadata.name == Some(object_of(&volume, &former)) && labels.values().any(|value| *value == name),
        "{labels:?}"
    );
    ensure!(fs::read_to_string(file)? == content("data"), "the data is not what it was");
    grows(cluster, "data")?;
    is_in_state(&adopt(cluster, &replacing)?, &volume, "there")?;
    let_go(cluster)
}

/// Checks that every tool says how a volume comes back that is on the first agent's node, and that none gives it up.
fn nothing_is_given_up_that_was_found(cluster: &Cluster, volume: &str, former: &str) -> Result<()> {
    let node = cluster.node();
    let advice = format!("`kubectl bulkhead adopt --node {node} --replace-from {former}`");
    // An agent looks twice, half a minute apart.
    cluster.access.wait(3 * cluster.patience(), "the volume to be found", || {
        let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
        Printed::row(&orphans, &["moved", &node, "-", "8 MiB", volume])?;
        ensure!(orphans.contains(&advice), "{orphans}");
        Ok(())
    })?;
    let doctor = plugin(cluster, &["doctor"])?.text;
    ensure!(doctor.contains(&advice) && !doctor.contains(&format!("release-node {former}")), "{doctor}");
    let refused = plugin(cluster, &["release-node", former, "--yes"])?.failed()?;
    ensure!(refused.contains(&advice) && refused.contains("--abandon-moved"), "{refused}");
    cluster.bound("data").map(drop)
}

fn an_orphan_of_another_cluster_is_kept(cluster: &mut Cluster) -> Result<()> {
    let [foreign, own] = ["pvc-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111", "pvc-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a222"];
    cluster.agent().rig.kill_frontend()?;
    let helper = cluster.agents[0].rig.helper()?;
    for volume in [foreign, own] {
        helper.ask(&bulkhead_tests::helper::create(volume, bulkhead_tests::helper::directory_spec(1 << 20)))?;
    }
    let note = "bulkhead-owner=1\nclaim=shop/data\ncluster=another\n".parse().expect("a record");
    helper.ask(&Request::SetOwner { volume: volume_id(foreign), owner: note })?;
    cluster.agent().rig.start_frontend()?;
    cluster.access.wait(cluster.patience(), "the other orphan to be deleted", || {
        let left = cluster.agents[0].volumes()?;
        ensure!(left == [foreign], "it holds {left:?}");
        Ok(())
    })?;
    cluster.agents[0].has_logged("orphaned volume kept: a note on it says that it belongs to the cluster another")?;
    cluster.agents[0].rig.helper()?.ask(&bulkhead_tests::helper::delete(foreign)).map(drop)
}

fn a_thousand_volumes_come_back(cluster: &mut Cluster) -> Result<()> {
    const VOLUMES: usize = 1000;
    let class = agent(cluster)?;
    let helper = cluster.agents[0].rig.helper()?;
    let id = |number: usize| format!("adopted-{number:04}");
    for number in 0..VOLUMES {
        let (id, claim) = (id(number), format!("{}/data-{number:04}", cluster.namespace));
        helper.ask(&bulkhead_tests::helper::create(&id, bulkhead_tests::helper::directory_spec(1 << 18)))?;
        let note = format!("bulkhead-owner=1\nclaim={claim}\npv={id}\nclass={class}\nmodes=ReadWriteOnce\n");
        let owner = note.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
        helper.ask(&Request::SetOwner { volume: volume_id(&id), owner })?;
    }
    reachable(cluster)?;
    for (what, more) in
        [("dry", &["--include-unused"][..]), ("apply", &["--include-unused", "--apply", "--with-claims"])]
    {
        let begun = Instant::now();
        let report = adopt(cluster, more)?;
        println!("adopt of {VOLUMES} volumes, {what}: {:?}", begun.elapsed());
        ensure!(report["volumes"].as_array().is_some_and(|all| all.len() == VOLUMES));
        is_in_state(&report, &id(VOLUMES - 1), if what == "dry" { "adopt" } else { "adopted" })?;
    }
    for number in [0, VOLUMES / 2, VOLUMES - 1] {
        cluster.bound(&format!("data-{number:04}"))?;
    }
    let begun = Instant::now();
    let again = adopt(cluster, &["--include-unused", "--apply", "--with-claims"])?;
    println!("a second run: {:?}", begun.elapsed());
    ensure!(again["items"] == json!([]), "a second run has made something");
    let_go(cluster)?;
    // A slow server deletes only some of them before it gives up.
    cluster.access.wait(Duration::from_secs(240), "the claims to be deleted", || {
        let all = (DeleteParams::default(), ListParams::default());
        Ok(cluster.access.run(cluster.claims().delete_collection(&all.0, &all.1)).map(drop)?)
    })?;
    cluster.access.wait(Duration::from_secs(240), "the volumes to be deleted", || {
        let left = cluster.agents[0].volumes()?.len();
        ensure!(left == 0, "{left} are left");
        Ok(())
    })
}
