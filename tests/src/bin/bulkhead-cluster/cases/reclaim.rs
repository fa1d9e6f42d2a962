//! What happens to a volume whose claim is deleted.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use bulkhead_protocol::{Reply, Request};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::control_plane::assets;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{claim, handle, on, pod, volume};
use bulkhead_tests::cluster::{Cluster, PATIENCE};
use bulkhead_tests::csi::requests::{delete, mount, publish, unpublish};
use bulkhead_tests::documented::{KUBERNETES, blocks, run_all, section, subsection};
use bulkhead_tests::node::Kubectl;
use kube::api::DeleteParams;
use serde_json::{json, to_value};

use super::census::has_metric;

cases! {
    on Cluster;
    delete_deletes_everything,
    retain_keeps_everything,
    what_is_documented_of_kept_volumes_works,
    a_volume_whose_note_is_of_a_later_release_is_kept,
    the_policy_may_change_while_it_is_bound,
    the_policy_may_change_when_it_is_released,
    deleting_a_bound_volume_loses_nothing,
    a_published_volume_stays_until_it_is_not,
    a_static_volume_is_deleted_too,
    a_volume_that_another_object_names_is_kept,
    a_volume_that_an_object_without_the_label_names_is_kept,
    a_volume_whose_object_was_removed_by_force_keeps_its_data,
    an_agent_that_was_dead_deletes_when_it_is_back,
    a_kept_volume_is_not_deleted_for_an_object_that_a_token_can_make,
    a_volume_that_stays_busy_is_told: Long,
}

/// How long attempts fail, which is a little longer than nobody worries, and how often the kubelet makes one.
const HELD: Duration = Duration::from_secs(130);
const AGAIN: Duration = Duration::from_secs(10);

const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Creates a bound claim called data, and returns the name of its volume.
fn bound(cluster: &Cluster) -> Result<String> {
    cluster.create_claim(&on(claim("data", &cluster.class, "16Mi"), &cluster.node()))?;
    cluster.bound("data")?.metadata.name.context("a name")
}

fn holds(cluster: &Cluster, name: &str, wanted: bool) -> Result<()> {
    cluster.access.wait(PATIENCE, &format!("{name} to be in the pool: {wanted}"), || {
        let found = cluster.agents[0].volumes()?;
        ensure!(found.iter().any(|volume| volume == handle(name)) == wanted, "the pool holds {found:?}");
        Ok(())
    })
}

/// Checks that a volume is in the pool and does not get deleted.
fn stays(cluster: &Cluster, name: &str) -> Result<()> {
    // If an agent deletes a volume at all, it does so immediately.
    std::thread::sleep(Duration::from_secs(1));
    let found = cluster.agents[0].volumes()?;
    ensure!(found.iter().any(|volume| volume == handle(name)), "{name} was deleted; the pool holds {found:?}");
    Ok(())
}

fn set_policy(cluster: &Cluster, name: &str, policy: &str) -> Result<()> {
    cluster.patch_volume(name, &json!({ "spec": { "persistentVolumeReclaimPolicy": policy } }))
}

fn has_finalizer(cluster: &Cluster, name: &str, wanted: bool) -> Result<()> {
    let what = format!("to have our finalizer: {wanted}");
    cluster.access.wait_for(&cluster.volumes(), name, PATIENCE, &what, |volume| {
        let finalizers = volume.metadata.finalizers.clone().unwrap_or_default();
        ensure!(finalizers.iter().any(|one| one == FINALIZER) == wanted, "it has {finalizers:?}");
        Ok(())
    })?;
    Ok(())
}

fn delete_deletes_everything(cluster: &mut Cluster) -> Result<()> {
    let name = bound(cluster)?;
    cluster.delete_claim("data")?;
    cluster.volume_gone(&name)?;
    holds(cluster, &name, false)
}

fn retain_keeps_everything(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["reclaimPolicy"] = json!("Retain"))?;
    let name = kept(cluster, &class)?;
    has_finalizer(cluster, &name, false)?;
    stays(cluster, &name)?;
    given_to_another(cluster, &class, &name)?;
    set_policy(cluster, &name, "Delete")
}

fn what_is_documented_of_kept_volumes_works(cluster: &mut Cluster) -> Result<()> {
    let page = subsection(section(KUBERNETES, "Use")?, "Keep a volume beyond its claim")?;
    let class = cluster.add_class(|class| class["reclaimPolicy"] = json!("Delete"))?;
    cluster.create_claim(&on(claim("data", &class, "200Mi"), &cluster.node()))?;
    let name = cluster.bound("data")?.metadata.name.context("a name")?;
    let written = |text: &str| text.replace("VOLUME", &name).replace("bulkhead-retain", &class);
    let commands: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("    ")).map(written).collect();
    let [keep, clear, delete] = &commands[..] else { bail!("{commands:?}") };
    let kubectl = Kubectl { program: assets()?.join("kubectl"), kubeconfig: cluster.access.kubeconfig() };
    run_all(&kubectl, keep)?;
    cluster.delete_claim("data")?;
    cluster.volume_phase(&name, "Released")?;
    stays(cluster, &name)?;
    run_all(&kubectl, clear)?;
    let manifest = blocks(page, "yaml").pop().context("no manifest")?;
    let file = cluster.agents[0].rig.work().join("again.yaml");
    fs::write(&file, written(&manifest))?;
    run_all(&kubectl, &format!("kubectl --namespace {} apply --filename {}", cluster.namespace, file.display()))?;
    let volume = cluster.bound("again")?;
    ensure!(volume.metadata.name.as_deref() == Some(&name), "it has another volume");
    cluster.delete_claim("again")?;
    cluster.volume_phase(&name, "Released")?;
    run_all(&kubectl, delete)?;
    cluster.volume_gone(&name)?;
    holds(cluster, &name, false)
}

/// Makes a claim of a class that retains, deletes it, and returns the name of its volume.
pub fn kept(cluster: &Cluster, class: &str) -> Result<String> {
    cluster.create_claim(&on(claim("data", class, "16Mi"), &cluster.node()))?;
    let name = cluster.bound("data")?.metadata.name.context("a name")?;
    cluster.delete_claim("data")?;
    cluster.volume_phase(&name, "Released")?;
    Ok(name)
}

/// Gives a kept volume to a new claim, called again, as an administrator, the restore of a backup and volume populators do.
pub fn given_to_another(cluster: &Cluster, class: &str, name: &str) -> Result<()> {
    cluster.patch_volume(name, &json!({ "spec": { "claimRef": null } }))?;
    let mut again = claim("again", class, "16Mi");
    again["spec"]["volumeName"] = json!(name);
    cluster.create_claim(&again)?;
    let volume = cluster.bound("again")?;
    ensure!(volume.metadata.name.as_deref() == Some(name), "it has another volume");
    Ok(())
}

/// Nobody knows what it says: that the volume is to be kept, perhaps.
fn a_volume_whose_note_is_of_a_later_release_is_kept(cluster: &mut Cluster) -> Result<()> {
    const LATER: &str = "bulkhead-owner=2\nkeep=always\n";
    let name = bound(cluster)?;
    let volume = bulkhead_tests::helper::volume(handle(&name));
    let set = |note: &str| {
        let owner = note.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
        cluster.agents[0].rig.helper()?.ask_patiently(&Request::SetOwner { volume: volume.clone(), owner })
    };
    super::adopt::noted(cluster, &[handle(&name)])?;
    let own = note(cluster, &name)?;
    set(LATER)?;
    cluster.delete_claim("data")?;
    cluster.event(&name, "VolumeFailedDelete", "its first line is not bulkhead-owner=1")?;
    stays(cluster, &name)?;
    ensure!(note(cluster, &name)? == LATER, "the note is another: {}", note(cluster, &name)?);
    set(&own)?;
    cluster.volume_gone(&name)
}

fn the_policy_may_change_while_it_is_bound(cluster: &mut Cluster) -> Result<()> {
    let name = bound(cluster)?;
    set_policy(cluster, &name, "Retain")?;
    has_finalizer(cluster, &name, false)?;
    cluster.delete_claim("data")?;
    cluster.volume_phase(&name, "Released")?;
    stays(cluster, &name)?;
    set_policy(cluster, &name, "Delete")?;
    cluster.volume_gone(&name)?;
    holds(cluster, &name, false)
}

fn the_policy_may_change_when_it_is_released(cluster: &mut Cluster) -> Result<()> {
    let name = bound(cluster)?;
    set_policy(cluster, &name, "Retain")?;
    set_policy(cluster, &name, "Delete")?;
    has_finalizer(cluster, &name, true)?;
    cluster.delete_claim("data")?;
    cluster.volume_gone(&name)
}

fn deleting_a_bound_volume_loses_nothing(cluster: &mut Cluster) -> Result<()> {
    let name = bound(cluster)?;
    cluster.create_pod(&pod("user", &cluster.namespace, &["data"]))?;
    cluster.access.run(cluster.volumes().delete(&name, &DeleteParams::default()))?;
    stays(cluster, &name)?;
    let volume = to_value(cluster.access.run(cluster.volumes().get(&name))?)?;
    ensure!(volume["status"]["phase"] == "Bound", "it is {}", volume["status"]);
    cluster.delete_pod("user")?;
    cluster.delete_claim("data")?;
    cluster.volume_gone(&name)?;
    holds(cluster, &name, false)
}

fn a_published_volume_stays_until_it_is_not(cluster: &mut Cluster) -> Result<()> {
    let name = bound(cluster)?;
    let rig = &cluster.agents[0].rig;
    let (csi, target) = (rig.csi()?, rig.target(handle(&name)));
    csi.node_publish_volume(publish(handle(&name), &target, mount()))?;
    fs::write(target.join("file"), "kept")?;
    cluster.delete_claim("data")?;
    cluster.volume_phase(&name, "Released")?;
    cluster.event(&name, "VolumeFailedDelete", handle(&name))?;
    ensure!(fs::read(target.join("file"))? == b"kept", "the file was lost");
    csi.node_unpublish_volume(unpublish(handle(&name), &target))?;
    cluster.volume_gone(&name)?;
    holds(cluster, &name, false)
}

fn a_static_volume_is_deleted_too(cluster: &mut Cluster) -> Result<()> {
    let rig = &cluster.agents[0].rig;
    let id = rig.create(&rig.csi()?, "by-hand", 16 << 20, mount())?;
    let name = format!("{}-static", cluster.namespace);
    let mut by_hand = volume(&name, &id, &cluster.class, "16Mi", &cluster.node());
    if !cluster.is_recent() {
        by_hand["metadata"]["labels"] = json!({ TOPOLOGY_KEY: cluster.node() });
    }
    cluster.create_volume(&by_hand)?;
    let mut claim = claim("data", &cluster.class, "16Mi");
    claim["spec"]["volumeName"] = json!(name);
    cluster.create_claim(&claim)?;
    cluster.bound("data")?;
    has_finalizer(cluster, &name, true)?;
    holds(cluster, &id, true)?;
    cluster.delete_claim("data")?;
    cluster.volume_gone(&name)?;
    holds(cluster, &id, false)
}

/// An administrator made a second object for the same volume, perhaps to hand it to another claim.
fn a_volume_that_an_object_without_the_label_names_is_kept(cluster: &mut Cluster) -> Result<()> {
    let name = bound(cluster)?;
    let second = format!("{}-second", cluster.namespace);
    let mut by_hand = volume(&second, handle(&name), &cluster.class, "16Mi", &cluster.node());
    by_hand["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    cluster.create_volume(&by_hand)?;
    cluster.delete_claim("data")?;
    cluster.event(&name, "VolumeFailedDelete", &format!("PersistentVolume {second} names the same volume"))?;
    stays(cluster, &name)?;
    cluster.access.run(cluster.volumes().delete(&second, &DeleteParams::default()))?;
    cluster.volume_gone(&name)
}

fn a_volume_that_another_object_names_is_kept(cluster: &mut Cluster) -> Result<()> {
    let name = bound(cluster)?;
    let second = format!("{}-second", cluster.namespace);
    let mut by_hand = volume(&second, handle(&name), &cluster.class, "16Mi", &cluster.node());
    by_hand["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    if !cluster.is_recent() {
        by_hand["metadata"]["labels"] = json!({ TOPOLOGY_KEY: cluster.node() });
    }
    cluster.create_volume(&by_hand)?;
    cluster.delete_claim("data")?;
    cluster.event(&name, "VolumeFailedDelete", &format!("PersistentVolume {second} names the same volume"))?;
    stays(cluster, &name)?;
    // Once both are to be deleted, neither waits for the other.
    let mut other = claim("other", &cluster.class, "16Mi");
    other["spec"]["volumeName"] = json!(second);
    cluster.create_claim(&other)?;
    cluster.bound("other")?;
    set_policy(cluster, &second, "Delete")?;
    has_finalizer(cluster, &second, true)?;
    stays(cluster, &name)?;
    cluster.delete_claim("other")?;
    cluster.volume_gone(&second)?;
    cluster.volume_gone(&name)?;
    holds(cluster, &name, false)
}

fn a_volume_whose_object_was_removed_by_force_keeps_its_data(cluster: &mut Cluster) -> Result<()> {
    let name = bound(cluster)?;
    // Only a volume that has been used is kept.
    let rig = &cluster.agents[0].rig;
    let (csi, target) = (rig.csi()?, rig.target(handle(&name)));
    csi.node_publish_volume(publish(handle(&name), &target, mount()))?;
    csi.node_unpublish_volume(unpublish(handle(&name), &target))?;
    cluster.agent().rig.kill_frontend()?;
    cluster.access.run(cluster.volumes().delete(&name, &DeleteParams::default()))?;
    cluster.patch_volume(&name, &json!({ "metadata": { "finalizers": null } }))?;
    cluster.access.wait_until_gone(&cluster.volumes(), &name, PATIENCE)?;
    cluster.access.wait_for(&cluster.claims(), "data", PATIENCE, "to be lost", |claim| {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        ensure!(phase == Some("Lost"), "it is {phase:?}");
        Ok(())
    })?;
    cluster.agent().rig.start_frontend()?;
    cluster.delete_claim("data")?;
    cluster.access.wait(PATIENCE, "the agent to look for forgotten volumes", || {
        cluster.agents[0].has_logged("kept, though neither a claim nor a PersistentVolume knows it")
    })?;
    ensure!(cluster.agents[0].volumes()? == [handle(&name)], "the volume was deleted");
    let csi = cluster.agent().rig.csi()?;
    csi.delete_volume(delete(handle(&name)))?;
    Ok(())
}

fn an_agent_that_was_dead_deletes_when_it_is_back(cluster: &mut Cluster) -> Result<()> {
    let name = bound(cluster)?;
    cluster.agent().rig.kill_frontend()?;
    cluster.delete_claim("data")?;
    cluster.volume_phase(&name, "Released")?;
    cluster.agent().rig.start_frontend()?;
    cluster.volume_gone(&name)?;
    holds(cluster, &name, false)
}

/// Returns what is noted on the first agent's volume.
fn note(cluster: &Cluster, name: &str) -> Result<String> {
    let volume = bulkhead_tests::helper::volume(handle(name));
    match cluster.agents[0].rig.helper()?.ask_patiently(&Request::Owner { volume })? {
        Reply::Owner { owner, .. } => Ok(owner.context("nothing is noted")?.as_str().to_owned()),
        other => bail!("{other:?}"),
    }
}

fn a_kept_volume_is_not_deleted_for_an_object_that_a_token_can_make(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["reclaimPolicy"] = json!("Retain"))?;
    cluster.create_claim(&on(claim("data", &class, "16Mi"), &cluster.node()))?;
    let kept = cluster.bound("data")?;
    let name = kept.metadata.name.clone().context("a name")?;
    // The administrator keeps it: nothing but the note says so from then on.
    cluster.delete_claim("data")?;
    cluster.volume_phase(&name, "Released")?;
    cluster.access.run(cluster.volumes().delete(&name, &DeleteParams::default()))?;
    cluster.volume_gone(&name)?;
    // Whoever has the agent's token makes the object that an agent would make; for anybody's claim, if it likes.
    for namespace in ["default", cluster.namespace.as_str()] {
        let noted = note(cluster, &name)?;
        ensure!(noted.contains("reclaim=Retain\n"), "{noted}");
        let mut forged = to_value(&kept)?;
        forged["metadata"] = json!({
            "name": name, "labels": kept.metadata.labels, "annotations": kept.metadata.annotations,
            "finalizers": [FINALIZER],
        });
        forged["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
        forged["spec"]["claimRef"]["namespace"] = json!(namespace);
        cluster.create_volume(&forged)?;
        cluster.event(&name, "VolumeFailedDelete", "a note on volume")?;
        stays(cluster, &name)?;
        ensure!(note(cluster, &name)? == noted, "the note is another: {}", note(cluster, &name)?);
        set_policy(cluster, &name, "Retain")?;
        has_finalizer(cluster, &name, false)?;
        let own = format!("claim={}/data\n", cluster.namespace);
        ensure!(note(cluster, &name)?.contains(&own), "it is {}", note(cluster, &name)?);
        cluster.access.run(cluster.volumes().delete(&name, &DeleteParams::default()))?;
        cluster.volume_gone(&name)?;
    }
    stays(cluster, &name)?;
    let csi = cluster.agents[0].rig.csi()?;
    csi.delete_volume(delete(handle(&name)))?;
    Ok(())
}

/// Something keeps a file of it open, and the kubelet tries to unpublish it again and again.
fn a_volume_that_stays_busy_is_told(cluster: &mut Cluster) -> Result<()> {
    let name = bound(cluster)?;
    let rig = &cluster.agents[0].rig;
    let (csi, target) = (rig.csi()?, rig.target(handle(&name)));
    csi.node_publish_volume(publish(handle(&name), &target, mount()))?;
    are_abnormal(cluster, 0)?;
    let held = fs::File::create(target.join("file"))?;
    for _ in 0..=HELD.as_secs() / AGAIN.as_secs() {
        let refused = csi.node_unpublish_volume(unpublish(handle(&name), &target));
        ensure!(refused.is_err(), "it was unpublished while a file of it was open");
        std::thread::sleep(AGAIN);
    }
    are_abnormal(cluster, 1)?;
    cluster.event("data", "VolumeConditionAbnormal", "the volume cannot be unpublished, so its pod does not end")?;
    let notes = cluster.notes("data")?;
    ensure!(notes.iter().all(|note| !note.contains("VolumeConditionNormal")), "{notes:?}");
    drop(held);
    csi.node_unpublish_volume(unpublish(handle(&name), &target))?;
    are_abnormal(cluster, 0)?;
    cluster.event("data", "VolumeConditionNormal", "the volume is healthy again").map(drop)
}

/// Waits until so many volumes need attention by the metrics. The agent looks twice a minute.
fn are_abnormal(cluster: &Cluster, volumes: u32) -> Result<()> {
    cluster.access.wait(2 * PATIENCE, &format!("{volumes} volumes to be abnormal"), || {
        has_metric(cluster, &format!("bulkhead_pool_abnormal_volumes{{pool=\"default\"}} {volumes}.0"))
    })
}
