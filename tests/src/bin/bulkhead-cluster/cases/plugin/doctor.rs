//! What the doctor finds wrong with nodes, capacity, claims, and what backup programs are told.

use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests::{self, NAMESPACE};
use bulkhead_tests::cluster::network::POD_ADDRESS;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, claim, on, pod, volume};
use bulkhead_tests::commands::{Printed, bulkheadctl};
use bulkhead_tests::kubelet::DRIVER;
use bulkhead_tests::monitoring;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, from_value, json};

use super::{agent_pod, plugin};

cases! {
    on Cluster;
    the_doctor_knows_the_policies_and_each_node,
    capacity_of_a_former_installation_is_named,
    a_node_without_its_label_is_named,
    a_claim_that_no_agent_serves_is_named: Slow,
    a_volume_that_holds_a_claim_up_is_named,
    backup_programs_that_are_not_served_are_told_of: Bare,
}

fn the_doctor_knows_the_policies_and_each_node(cluster: &mut Cluster) -> Result<()> {
    let node = format!("node {}", cluster.node());
    cluster.access.wait(cluster.patience(), "the node to be well", || {
        // Other tests' nodes may not be healthy.
        let printed = plugin(cluster, &["doctor"])?;
        Printed::row(&printed.text, &["ok", "CSIDriver bulkhead.csi.local"])?;
        Printed::row(&printed.text, &["ok", "policies", "all 9 are in force"])?;
        Printed::row(&printed.text, &["note", "agents", "there is no DaemonSet"])?;
        Printed::row(&printed.text, &["ok", &node]).map(drop)
    })
}

fn capacity_of_a_former_installation_is_named(cluster: &mut Cluster) -> Result<()> {
    let former: Api<CSIStorageCapacity> = Api::namespaced(cluster.access.client(), &cluster.namespace);
    let node = cluster.node();
    let object = json!({
        "metadata": { "name": "former", "labels": { "csi.storage.k8s.io/drivername": DRIVER } },
        "storageClassName": cluster.class, "capacity": "1Ti", "maximumVolumeSize": "1Ti",
        "nodeTopology": { "matchLabels": { TOPOLOGY_KEY: node } },
    });
    cluster.access.run(former.create(&PostParams::default(), &from_value(object)?))?;
    let told = plugin(cluster, &["doctor"])?.failed()?;
    let remedy = format!("kubectl --namespace {0} delete csistoragecapacities", cluster.namespace);
    ensure!(Printed::row(&told, &["FAILED", "capacity", "1 object"])?.contains(&remedy), "{told}");
    let nodes = plugin(cluster, &["nodes"])?.succeeded()?;
    ensure!(!Printed::row(&nodes, &[&node])?.contains("1 TiB"), "nobody has that much: {nodes}");
    // The scheduler believes it, and chooses the node again and again.
    cluster.create_claim(&claim("data", &cluster.class, "4Gi"))?;
    cluster.create_pod(&pod("user", &cluster.namespace, &["data"]))?;
    let misled = cluster.event("data", "ProvisioningFailed", "had already published that it has no room for this")?;
    ensure!(
        misled.note.is_some_and(|note| note.contains("see `kubectl bulkhead doctor`")),
        "it does not say what to do"
    );
    cluster.delete_pod("user")?;
    cluster.access.run(former.delete("former", &Default::default()))?;
    let told = plugin(cluster, &["doctor"])?.text;
    ensure!(!told.contains(&remedy), "{told}");
    Ok(())
}

fn a_node_without_its_label_is_named(cluster: &mut Cluster) -> Result<()> {
    let (node, nodes) = (cluster.node(), Api::<Node>::all(cluster.access.client()));
    cluster.capacity(&cluster.class, &node)?;
    let label = |value: Value| {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { TOPOLOGY_KEY: value } } }));
        cluster.access.run(nodes.patch(&node, &PatchParams::default(), &patch)).map(drop)
    };
    label(Value::Null)?;
    Printed::row(&plugin(cluster, &["nodes"])?.succeeded()?, &[&node, "not-labelled"])?;
    let doctor = plugin(cluster, &["doctor"])?.failed()?;
    let told = Printed::row(&doctor, &["FAILED", "node", &node])?;
    ensure!(told.contains(&format!("kubectl label node {node} {TOPOLOGY_KEY}={node}")), "{told}");
    label(json!(node))?;
    // The agent, which has just begun, says twice a minute what it lacks.
    cluster.access.wait(cluster.patience(), "the node to be ready", || {
        Printed::row(&plugin(cluster, &["nodes"])?.succeeded()?, &[&node, "ready"]).map(drop)
    })
}

fn a_claim_that_no_agent_serves_is_named(cluster: &mut Cluster) -> Result<()> {
    let (node, claim_name) = (cluster.node(), format!("{}/data", cluster.namespace));
    cluster.agent().rig.kill_frontend()?;
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &node))?;
    cluster.access.wait(2 * cluster.patience(), "the doctor to name the claim", || {
        let doctor = plugin(cluster, &["doctor"])?.text;
        let told = format!("without a volume on node {node}: 1 claim ({claim_name})");
        ensure!(doctor.contains(&told), "{doctor}");
        Ok(())
    })?;
    cluster.agent().rig.start_frontend()?;
    cluster.bound("data")?;
    let doctor = plugin(cluster, &["doctor"])?.text;
    ensure!(!doctor.contains(&claim_name), "{doctor}");
    Ok(())
}

/// No node is selected for the claim yet, and somebody with an agent's rights has made a volume for it.
fn a_volume_that_holds_a_claim_up_is_named(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let uid = cluster.create_claim(&claim("data", &cluster.class, "8Mi"))?;
    let name = format!("pvc-{uid}.{node}");
    let mut decoy = volume(&name, &format!("pvc-{uid}"), &cluster.class, "8Mi", &node);
    decoy["spec"]["claimRef"] = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": cluster.namespace, "name": "data", "uid": uid,
    });
    cluster.access.run(cluster.volumes().create(&PostParams::default(), &from_value(decoy)?))?;
    let doctor = plugin(cluster, &["doctor"])?.failed()?;
    let told = Printed::row(&doctor, &["FAILED", "claims", &format!("{}/data has no node yet", cluster.namespace)])?;
    ensure!(told.contains(&format!("PersistentVolume {name} on node {node} holds it up: ")), "{told}");
    let commands: Vec<_> = told.split('`').filter_map(|part| part.strip_prefix("kubectl ")).collect();
    ensure!(commands.len() == 2, "{told}");
    let kubectl = |command: &str| {
        let words: Vec<_> = command.split(' ').map(|word| word.trim_matches('\'')).collect();
        manifests::kubectl(&cluster.access.kubeconfig(), &words)
    };
    kubectl(commands[0])?;
    // The agent may have been faster.
    let _ = kubectl(commands[1]);
    cluster.volume_gone(&name)?;
    let doctor = plugin(cluster, &["doctor"])?.text;
    ensure!(!doctor.contains(&name), "{doctor}");
    cluster.patch_claim("data", &json!({ "metadata": { "annotations": { SELECTED_NODE: node } } }))?;
    cluster.bound("data").map(drop)
}

/// Both doctors say so, until there is a certificate.
fn backup_programs_that_are_not_served_are_told_of(cluster: &mut Cluster) -> Result<()> {
    let directory = tempfile::tempdir()?;
    // Agents run as another user.
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
    cluster.add_agent_with(|rig| {
        monitoring::serve_at(rig, &format!("{POD_ADDRESS}:0"));
        let path = directory.path().display().to_string();
        let address = format!("{POD_ADDRESS}:0");
        let flags = ["--snapshot-metadata-address", &address, "--snapshot-metadata-certificate", &path];
        rig.frontend_flags.extend(flags.map(Into::into));
        rig.add_pool("default")
    })?;
    let address: SocketAddr = monitoring::address(&cluster.agents[0].rig)?.parse()?;
    agent_pod(cluster, NAMESPACE, address.port(), true)?;
    let (name, socket) = (format!("changed blocks on {}", cluster.node()), cluster.agents[0].rig.kubelet.csi_socket());
    let is_told = |outcome: &str, part: &str| {
        cluster.access.wait(cluster.patience(), "the doctors to say how backup programs are served", || {
            let told = plugin(cluster, &["doctor"])?.text;
            ensure!(Printed::row(&told, &[outcome, &name])?.contains(part), "{told}");
            let told = Printed::by(bulkheadctl(&socket)?.arg("doctor"))?.text;
            ensure!(Printed::row(&told, &[outcome, "changed blocks"])?.contains(part), "{told}");
            Ok(())
        })
    };
    is_told("FAILED", "tls.crt cannot be read")?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec![POD_ADDRESS.to_owned()])?.self_signed(&key)?;
    fs::write(directory.path().join("tls.key"), key.serialize_pem())?;
    fs::write(directory.path().join("tls.crt"), certificate.pem())?;
    is_told("ok", "served to backup programs")
}
