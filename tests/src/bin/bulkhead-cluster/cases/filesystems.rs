//! Claims of a class whose volumes have filesystems of their own, in images.

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, block, claim, handle, on};
use bulkhead_tests::csi::requests::{mount, publish, stats, unpublish};
use bulkhead_tests::csi::v1::volume_usage::Unit;
use bulkhead_tests::expect::same;
use serde_json::{json, to_value};

cases! {
    on Cluster;
    a_claim_lives_and_grows_in_an_image: Bare,
    a_node_that_is_not_configured_for_them_has_no_room,
    a_claim_for_a_device_has_one_too: Bare,
    a_small_claim_is_made_one_for_the_least_there_is: Bare + Recent,
    a_damaged_one_is_told_and_harms_no_other: Bare,
}

/// An agent with a pool for them, and a class.
fn set_up(cluster: &mut Cluster) -> Result<()> {
    cluster.class = cluster.add_class(|class| class["parameters"] = json!({ "backing": "image", "sparse": "true" }))?;
    cluster.add_agent_with(|rig| rig.add_pool_for_filesystems("default")).map(drop)
}

/// Makes a claim and returns the name of its PersistentVolume.
fn made(cluster: &mut Cluster, name: &str, size: &str) -> Result<String> {
    let node = cluster.node();
    cluster.create_claim(&on(claim(name, &cluster.class, size), &node))?;
    cluster.bound(name)?.metadata.name.context("a name")
}

fn a_claim_lives_and_grows_in_an_image(cluster: &mut Cluster) -> Result<()> {
    set_up(cluster)?;
    let name = made(cluster, "data", "512Mi")?;
    let volume = to_value(cluster.bound("data")?)?;
    same("the mode", &volume["spec"]["volumeMode"], json!("Filesystem"))?;
    same("the capacity", &volume["spec"]["capacity"], json!({ "storage": "512Mi" }))?;
    let id = handle(&name).to_owned();
    let rig = &cluster.agents[0].rig;
    let (csi, target) = (rig.csi()?, rig.kubelet.prepare(&id, &name, "pod-1")?);
    csi.node_publish_volume(publish(&id, &target, mount()))?;
    let pool = rig.pool().directory.metadata()?.dev();
    ensure!(target.metadata()?.dev() != pool, "it is a directory of the pool");
    fs::write(target.join("file"), "content")?;
    let room = |csi: &bulkhead_tests::csi::CsiClient| -> Result<i64> {
        let told = csi.node_get_volume_stats(stats(&id, &target))?;
        ensure!(told.volume_condition.is_some_and(|condition| !condition.abnormal), "it is abnormal");
        let inodes = told.usage.iter().find(|usage| usage.unit() == Unit::Inodes).context("no inodes")?;
        ensure!(inodes.used > 0 && inodes.available > 0, "{inodes:?}");
        let bytes = told.usage.iter().find(|usage| usage.unit() == Unit::Bytes).context("no bytes")?;
        ensure!(bytes.total == bytes.used + bytes.available, "{bytes:?}");
        Ok(bytes.total)
    };
    let before = room(&csi)?;
    ensure!((400 << 20..512 << 20).contains(&before), "{before} bytes of 512 MiB");
    cluster.patch_claim("data", &json!({ "spec": { "resources": { "requests": { "storage": "1Gi" } } } }))?;
    cluster.access.wait_for(&cluster.claims(), "data", cluster.patience(), "to have grown", |claim| {
        let status = to_value(&claim.status)?;
        ensure!(status["capacity"]["storage"] == "1Gi", "its status is {status}");
        Ok(())
    })?;
    let after = room(&csi)?;
    ensure!(after - before == 512 << 20, "the pod sees {after} bytes after {before}");
    ensure!(fs::read(target.join("file"))? == b"content", "the file has changed");
    unpublished(cluster, &id, &target)?;
    let other = cluster.agents[0].rig.kubelet.prepare(&id, &name, "pod-2")?;
    csi.node_publish_volume(publish(&id, &other, mount()))?;
    ensure!(fs::read(other.join("file"))? == b"content", "the file is gone");
    unpublished(cluster, &id, &other)
}

/// What the policy does, and what it leaves as it is. A quota counts what is taken.
fn a_small_claim_is_made_one_for_the_least_there_is(cluster: &mut Cluster) -> Result<()> {
    set_up(cluster)?;
    let quotas = format!("/api/v1/namespaces/{}/resourcequotas", cluster.namespace);
    let quota = json!({ "metadata": { "name": "all" }, "spec": { "hard": { "requests.storage": "1Gi" } } });
    cluster.ask("POST", &quotas, Some(&quota))?;
    let directories = cluster.add_class(|_| {})?;
    let of = |name: &str, class: &str, size: &str| on(claim(name, class, size), &cluster.node());
    let claims = [
        (of("small", &cluster.class, "1Mi"), "300Mi"),
        (of("enough", &cluster.class, "301Mi"), "301Mi"),
        (block(of("device", &cluster.class, "1Mi")), "1Mi"),
        (of("directory", &directories, "2Mi"), "2Mi"),
    ];
    for (claim, size) in &claims {
        cluster.create_claim(claim)?;
        let name = claim["metadata"]["name"].as_str().context("a name")?;
        let volume = to_value(cluster.bound(name)?)?;
        same("the capacity", &volume["spec"]["capacity"]["storage"], json!(size))?;
        let asked = to_value(cluster.access.run(cluster.claims().get(name))?)?;
        same("the request", &asked["spec"]["resources"]["requests"]["storage"], json!(size))?;
    }
    cluster.access.wait(cluster.patience(), "the quota to count what is taken", || {
        let counted = cluster.ask("GET", &format!("{quotas}/all"), None)?;
        same("the quota's use", &counted["status"]["used"], json!({ "requests.storage": "604Mi" }))
    })
}

/// Unpublishes a volume as a kubelet does, again and again: a process in a new mount namespace of its own, as other tests make,
/// has the filesystem mounted for a moment.
fn unpublished(cluster: &Cluster, id: &str, target: &Path) -> Result<()> {
    let rig = &cluster.agents[0].rig;
    let csi = rig.csi()?;
    rig.eventually(30, || Ok(csi.node_unpublish_volume(unpublish(id, target)).map(drop)?))
}

fn a_node_that_is_not_configured_for_them_has_no_room(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["parameters"] = json!({ "backing": "image" }))?;
    let node = cluster.node();
    ensure!(cluster.room(&class, &node)? == 0, "it has room");
    ensure!(cluster.room(&cluster.class, &node)? > 0, "it has none for directories");
    cluster.create_claim(&on(claim("data", &class, "320Mi"), &node))?;
    cluster.event("data", "ProvisioningFailed", "not configured")?;
    let given_back =
        cluster.access.wait_for(&cluster.claims(), "data", cluster.patience(), "to be given back", |claim| {
            let annotations = claim.metadata.annotations.clone().unwrap_or_default();
            ensure!(!annotations.contains_key(SELECTED_NODE), "it still has its node: {annotations:?}");
            Ok(())
        });
    given_back.map(drop)
}

fn a_claim_for_a_device_has_one_too(cluster: &mut Cluster) -> Result<()> {
    set_up(cluster)?;
    let node = cluster.node();
    // Less than a filesystem takes.
    cluster.create_claim(&block(on(claim("disk", &cluster.class, "16Mi"), &node)))?;
    let volume = cluster.bound("disk")?.metadata.name.context("a volume without a name")?;
    let listed = cluster.agents[0].volumes()?;
    ensure!(listed == [handle(&volume)], "{listed:?}");
    Ok(())
}

fn a_damaged_one_is_told_and_harms_no_other(cluster: &mut Cluster) -> Result<()> {
    set_up(cluster)?;
    let (bad, good) = (made(cluster, "bad", "320Mi")?, made(cluster, "good", "320Mi")?);
    let rig = &cluster.agents[0].rig;
    let csi = rig.csi()?;
    let image = rig.pool().volume(handle(&bad)).join("image");
    let file = fs::OpenOptions::new().write(true).open(&image)?;
    file.write_all_at(&[0; 4096], 0)?;
    drop(file);
    let target = rig.kubelet.prepare(handle(&bad), &bad, "pod-1")?;
    let told = csi.node_publish_volume(publish(handle(&bad), &target, mount()));
    let told = told.err().context("a filesystem without a superblock was mounted")?.to_string();
    ensure!(told.contains("docs/operate.md"), "nothing says what to do: {told}");
    cluster.event("bad", "VolumeConditionAbnormal", "could not be mounted")?;
    let other = rig.kubelet.prepare(handle(&good), &good, "pod-2")?;
    csi.node_publish_volume(publish(handle(&good), &other, mount()))?;
    fs::write(other.join("file"), "content")?;
    unpublished(cluster, handle(&good), &other)
}
