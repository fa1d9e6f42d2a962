//! `kubectl bulkhead`, beside agents on a real control plane.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{claim, on, pod};
use bulkhead_tests::cluster::{manifests, node};
use bulkhead_tests::commands::{Printed, kubectl_bulkhead};
use serde_json::Value;

cases! {
    on Cluster;
    nodes_pools_and_volumes_are_listed,
    volumes_are_watched,
    the_doctor_knows_the_policies_and_each_node,
    a_node_that_exists_is_not_released,
    a_lost_node_is_released,
}

fn plugin(cluster: &Cluster, arguments: &[&str]) -> Result<Printed> {
    Printed::by(kubectl_bulkhead(&cluster.access.kubeconfig())?.args(arguments))
}

fn json(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let printed = plugin(cluster, &[arguments, &["-o", "json"]].concat())?.succeeded()?;
    serde_json::from_str(&printed).with_context(|| format!("no JSON: {printed}"))
}

fn nodes_pools_and_volumes_are_listed(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &node))?;
    let volume = cluster.bound("data")?.metadata.name.context("a name")?;
    let claim = format!("{}/data", cluster.namespace);

    let volumes = plugin(cluster, &["volumes"])?.succeeded()?;
    Printed::row(&volumes, &["VOLUME", "NODE", "CLAIM", "SIZE", "PHASE"])?;
    Printed::row(&volumes, &[&volume, &node, &claim, "8 MiB", "Bound"])?;
    let wide = plugin(cluster, &["volumes", "-o", "wide"])?.succeeded()?;
    Printed::row(&wide, &[&volume, &node, &claim, "8 MiB", "Bound", &cluster.class, "Filesystem", "Delete"])?;
    let listed = json(cluster, &["volumes"])?;
    let listed = listed.as_array().and_then(|all| all.iter().find(|one| one["name"] == volume)).context("missing")?;
    ensure!(listed["bytes"] == 8 << 20 && listed["claim"] == claim && listed["node"] == node, "{listed}");

    cluster.access.wait(cluster.patience(), "the node's room to be published", || {
        let nodes = plugin(cluster, &["nodes"])?.succeeded()?;
        Printed::row(&nodes, &["NODE", "STATE", "VOLUMES", "PROMISED", "AVAILABLE"])?;
        Printed::row(&nodes, &[&node, "ready", "1", "8 MiB"])?;
        let pools = plugin(cluster, &["pools"])?.succeeded()?;
        let room = Printed::row(&pools, &[&node, &cluster.class])?;
        ensure!(room.contains("iB"), "{room}");
        Ok(())
    })
}

fn volumes_are_watched(cluster: &mut Cluster) -> Result<()> {
    let mut command = kubectl_bulkhead(&cluster.access.kubeconfig())?;
    let mut watching = command.args(["volumes", "--watch"]).stdout(Stdio::piped()).spawn().context("start it")?;
    let printed = BufReader::new(watching.stdout.take().context("its output")?);
    let node = cluster.node();
    let made = cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &node)).and_then(|_| {
        cluster.bound("data")?;
        Ok(format!("{}/data", cluster.namespace))
    });
    // It goes on for ever, and the test has a limit of its own.
    let found = made.and_then(|claim| {
        let mut lines = printed.lines();
        lines.find_map(|line| line.ok().filter(|line| line.contains(&claim))).context("it ended")
    });
    watching.kill()?;
    watching.wait()?;
    ensure!(found?.contains(&node), "another node");
    Ok(())
}

fn the_doctor_knows_the_policies_and_each_node(cluster: &mut Cluster) -> Result<()> {
    let node = format!("node {}", cluster.node());
    cluster.access.wait(cluster.patience(), "the node to be well", || {
        // Other tests' nodes may not be.
        let printed = plugin(cluster, &["doctor"])?;
        Printed::row(&printed.text, &["ok", "CSIDriver bulkhead.csi.local"])?;
        Printed::row(&printed.text, &["ok", "policies", "all 4 are in force"])?;
        Printed::row(&printed.text, &["note", "agents", "there is no DaemonSet"])?;
        Printed::row(&printed.text, &["ok", &node]).map(drop)
    })
}

fn a_node_that_exists_is_not_released(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let told = plugin(cluster, &["release-node", &node, "--yes"])?.failed()?;
    ensure!(told.contains("still exists") && told.contains("kubectl delete node"), "{told}");
    let nobody = plugin(cluster, &["release-node", "no-such-node"])?.succeeded()?;
    ensure!(nobody.contains("nothing refers to node no-such-node"), "{nobody}");
    Ok(())
}

fn a_lost_node_is_released(cluster: &mut Cluster) -> Result<()> {
    let gone = cluster.add_agent()?.node.clone();
    cluster.create_claim(&on(claim("there", &cluster.class, "8Mi"), &gone))?;
    let volume = cluster.bound("there")?.metadata.name.context("a name")?;
    cluster.agents[1].stand.kill_frontend()?;
    cluster.create_claim(&on(claim("waiting", &cluster.class, "8Mi"), &gone))?;
    cluster.create_pod(&pod("user", &cluster.namespace, &["waiting"]))?;
    node::delete(&cluster.access, &gone)?;
    let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
    let (lost, waiting) = (format!("{}/there", cluster.namespace), format!("{}/waiting", cluster.namespace));
    Printed::row(&orphans, &["lost", &gone, &lost, "8 MiB", &volume])?;
    Printed::row(&orphans, &["waiting", &gone, &waiting, "8 MiB"])?;
    let nodes = plugin(cluster, &["nodes"])?.succeeded()?;
    Printed::row(&nodes, &[&gone, "lost", "1"])?;

    // Nothing happens before it is confirmed.
    let told = plugin(cluster, &["release-node", &gone])?.failed()?;
    ensure!(told.contains(&volume) && told.contains("--yes"), "{told}");
    manifests::kubectl(&cluster.access.kubeconfig(), &["get", "pv", &volume])?;

    let told = plugin(cluster, &["release-node", &gone, "--yes"])?.succeeded()?;
    ensure!(told.contains("1 volumes deleted, 1 claims given back"), "{told}");
    cluster.volume_gone(&volume)?;
    let elsewhere = cluster.bound("waiting")?.metadata.labels.context("labels")?;
    ensure!(elsewhere.get(TOPOLOGY_KEY) == Some(&cluster.node()), "it has {elsewhere:?}");
    let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
    ensure!(!orphans.contains(&gone), "{orphans}");
    // The volume on the disk of the lost node is none of the agents' business any more.
    cluster.agents[1].stand.start_frontend()?;
    let csi = cluster.agents[1].stand.csi()?;
    csi.delete_volume(bulkhead_tests::csi::requests::delete(&volume))?;
    Ok(())
}
