//! A claim whose node is selected gets a volume on that node.

use std::os::unix::fs::MetadataExt;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{block, claim, handle, on, pod};
use bulkhead_tests::expect::same;
use bulkhead_tests::kubelet::DRIVER;
use serde_json::{Value, json, to_value};

cases! {
    on Cluster;
    a_directory_volume_field_by_field,
    a_block_volume_is_an_allocated_image,
    a_pod_brings_its_claim_to_a_node,
    access_modes_are_copied,
    sizes_are_rounded_up,
    parameters_of_the_class_take_effect,
    mount_options_and_reclaim_policy_come_from_the_class,
    the_older_annotations_work,
}

fn a_directory_volume_field_by_field(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let uid = cluster.create_claim(&on(claim("data", &cluster.class, "64Mi"), &node))?;
    let volume = to_value(cluster.bound("data")?)?;
    let (metadata, spec) = (&volume["metadata"], &volume["spec"]);
    let name = format!("pvc-{uid}");
    same("the name", &metadata["name"], json!(format!("{name}.{node}")))?;
    same("the labels", &metadata["labels"], json!({ TOPOLOGY_KEY: node }))?;
    let annotations = &metadata["annotations"];
    same("the driver's annotation", &annotations["pv.kubernetes.io/provisioned-by"], json!(DRIVER))?;
    for part in ["name", "namespace"] {
        let key = format!("volume.kubernetes.io/provisioner-deletion-secret-{part}");
        same(&key, &annotations[key.as_str()], json!(""))?;
    }
    let finalizers = metadata["finalizers"].as_array().context("finalizers")?;
    for wanted in ["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection"] {
        ensure!(finalizers.contains(&json!(wanted)), "{wanted} is not among {finalizers:?}");
    }
    let of = &spec["claimRef"];
    same("the claim's kind", &of["kind"], json!("PersistentVolumeClaim"))?;
    same("the claim's namespace", &of["namespace"], json!(cluster.namespace))?;
    same("the claim's name", &of["name"], json!("data"))?;
    same("the claim's uid", &of["uid"], json!(uid))?;
    same("the class", &spec["storageClassName"], json!(cluster.class))?;
    same("the capacity", &spec["capacity"], json!({ "storage": "64Mi" }))?;
    same("the access modes", &spec["accessModes"], json!(["ReadWriteOnce"]))?;
    same("the mode", &spec["volumeMode"], json!("Filesystem"))?;
    same("the reclaim policy", &spec["persistentVolumeReclaimPolicy"], json!("Delete"))?;
    same("the driver", &spec["csi"]["driver"], json!(DRIVER))?;
    same("the handle", &spec["csi"]["volumeHandle"], json!(name))?;
    same("read-only", &spec["csi"]["readOnly"], Value::Null)?;
    let term = json!({ "matchExpressions": [{ "key": TOPOLOGY_KEY, "operator": "In", "values": [node] }] });
    same("the affinity", &spec["nodeAffinity"], json!({ "required": { "nodeSelectorTerms": [term] } }))?;
    ensure!(cluster.agent().rig.pool().volume(&name).join("data").is_dir(), "the pool has no directory of that name");
    let event = cluster.event("data", "ProvisioningSucceeded", &name)?;
    same("the event's reporter", &json!(event.reporting_controller), json!(DRIVER))?;
    same("the event's instance", &json!(event.reporting_instance), json!(node))
}

fn a_block_volume_is_an_allocated_image(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&block(on(claim("disk", &cluster.class, "32Mi"), &node)))?;
    let volume = to_value(cluster.bound("disk")?)?;
    same("the mode", &volume["spec"]["volumeMode"], json!("Block"))?;
    same("the filesystem", &volume["spec"]["csi"]["fsType"], Value::Null)?;
    let handle = volume["spec"]["csi"]["volumeHandle"].as_str().context("a handle")?;
    let image = cluster.agent().rig.pool().volume(handle).join("image").metadata()?;
    ensure!(image.len() == 32 << 20, "the image has {} bytes", image.len());
    ensure!(image.blocks() * 512 >= 32 << 20, "the image is not allocated");
    Ok(())
}

fn a_pod_brings_its_claim_to_a_node(cluster: &mut Cluster) -> Result<()> {
    cluster.create_claim(&claim("data", &cluster.class, "64Mi"))?;
    cluster.create_pod(&pod("user", &cluster.namespace, &["data"]))?;
    let volume = to_value(cluster.bound("data")?)?;
    same("the node", &volume["metadata"]["labels"][TOPOLOGY_KEY], json!(cluster.node()))?;
    let placed = cluster.access.wait_for(&cluster.pods(), "user", cluster.patience(), "to be placed", |pod| {
        ensure!(pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()), "it has no node");
        Ok(())
    })?;
    ensure!(placed.spec.and_then(|spec| spec.node_name) == Some(cluster.node()), "the pod is on another node");
    Ok(())
}

fn access_modes_are_copied(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let lists = [json!(["ReadWriteOncePod"]), json!(["ReadOnlyMany"]), json!(["ReadWriteOnce", "ReadOnlyMany"])];
    for (number, modes) in lists.into_iter().enumerate() {
        let name = format!("data-{number}");
        let mut claim = on(claim(&name, &cluster.class, "16Mi"), &node);
        claim["spec"]["accessModes"] = modes.clone();
        cluster.create_claim(&claim)?;
        same("the access modes", &to_value(cluster.bound(&name)?)?["spec"]["accessModes"], modes)?;
    }
    Ok(())
}

fn sizes_are_rounded_up(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    // A fraction of a byte counts as a byte, and sizes are rounded up to multiples of 4 KiB.
    for (number, (size, wanted)) in
        [("16777216", "16Mi"), ("16777215500m", "16Mi"), ("17M", "16604Ki")].into_iter().enumerate()
    {
        let name = format!("data-{number}");
        cluster.create_claim(&on(claim(&name, &cluster.class, size), &node))?;
        let volume = to_value(cluster.bound(&name)?)?;
        same(size, &volume["spec"]["capacity"]["storage"], json!(wanted))?;
    }
    Ok(())
}

fn parameters_of_the_class_take_effect(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| {
        class["parameters"] = json!({
            "pool": "default", "sparse": "true", "dirMode": "0750", "inodes": "1000",
            "csi.storage.k8s.io/fstype": "xfs",
        });
    })?;
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &class, "16Mi"), &node))?;
    cluster.create_claim(&block(on(claim("disk", &class, "16Mi"), &node)))?;
    let directory = to_value(cluster.bound("data")?)?;
    let disk = cluster.bound("disk")?.metadata.name.context("a name")?;
    same("the filesystem", &directory["spec"]["csi"]["fsType"], json!("xfs"))?;
    let name = directory["metadata"]["name"].as_str().context("a name")?;
    let pool = cluster.agent().rig.pool().clone();
    let mode = pool.volume(handle(name)).join("data").metadata()?.mode() & 0o7777;
    ensure!(mode == 0o750, "the directory's mode is {mode:o}");
    let blocks = pool.volume(handle(&disk)).join("image").metadata()?.blocks();
    ensure!(blocks < 1024, "a sparse image has {blocks} blocks");
    Ok(())
}

fn mount_options_and_reclaim_policy_come_from_the_class(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| {
        class["mountOptions"] = json!(["noexec"]);
        class["reclaimPolicy"] = json!("Retain");
    })?;
    cluster.create_claim(&on(claim("data", &class, "16Mi"), &cluster.node()))?;
    let volume = to_value(cluster.bound("data")?)?;
    same("the mount options", &volume["spec"]["mountOptions"], json!(["noexec"]))?;
    same("the policy", &volume["spec"]["persistentVolumeReclaimPolicy"], json!("Retain"))?;
    let name = volume["metadata"]["name"].as_str().context("a name")?;
    cluster.patch_volume(name, &json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" } }))
}

fn the_older_annotations_work(cluster: &mut Cluster) -> Result<()> {
    let mut claim = on(claim("data", &cluster.class, "16Mi"), &cluster.node());
    claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-class"] = json!(cluster.class);
    claim["metadata"]["annotations"]["volume.beta.kubernetes.io/storage-provisioner"] = json!(DRIVER);
    claim["spec"].as_object_mut().context("a spec")?.remove("storageClassName");
    cluster.create_claim(&claim)?;
    let volume = to_value(cluster.bound("data")?)?;
    same("the class", &volume["spec"]["storageClassName"], json!(cluster.class))
}
