//! What is listed of nodes, pools and volumes, and how it is printed.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::objects::{claim, on, pod};
use bulkhead_tests::commands::{Printed, kubectl_bulkhead};
use bulkhead_tests::monitoring;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, from_value, json};

use super::{add_reachable_agent, agent_pod, as_json, plugin};

cases! {
    on Cluster;
    nodes_pools_and_volumes_are_listed,
    volumes_are_watched,
    volumes_are_told_with_their_pods,
    a_terminal_obeys_no_tenant,
    a_user_without_rights_is_told_in_the_servers_words,
    pools_and_parts_are_read_from_the_agents: Bare,
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
    Printed::row(&wide, &[&volume, &node, &claim, "8 MiB", "Bound", "-", &cluster.class, "Filesystem", "Delete"])?;
    let listed = as_json(cluster, &["volumes"])?;
    let listed = listed.as_array().and_then(|all| all.iter().find(|one| one["name"] == volume)).context("missing")?;
    ensure!(listed["bytes"] == 8 << 20 && listed["claim"] == claim && listed["node"] == node, "{listed}");

    cluster.access.wait(cluster.patience(), "the node's room to be published", || {
        let nodes = plugin(cluster, &["nodes"])?.succeeded()?;
        Printed::row(&nodes, &["NODE", "STATE", "VOLUMES", "PROMISED", "AVAILABLE"])?;
        Printed::row(&nodes, &[&node, "ready", "1", "8 MiB"])?;
        let capacity = plugin(cluster, &["capacity"])?.succeeded()?;
        let room = Printed::row(&capacity, &[&node, &cluster.class])?;
        ensure!(room.contains("iB"), "{room}");
        // The agent is not a pod here.
        let pools = plugin(cluster, &["pools"])?.succeeded()?;
        let told = Printed::row(&pools, &[&node, "-", "-"])?;
        ensure!(told.contains("iB") && told.ends_with("unknown"), "{told}");
        ensure!(pools.contains("no pod to ask: see `bulkheadctl pool list`"), "{pools}");
        Ok(())
    })
}

fn volumes_are_watched(cluster: &mut Cluster) -> Result<()> {
    let mut command = kubectl_bulkhead(&cluster.access.kubeconfig())?;
    let command = command.args(["volumes", "--watch", "--namespace", &cluster.namespace]);
    let mut watching = command.stdout(Stdio::piped()).spawn().context("start it")?;
    let mut lines = BufReader::new(watching.stdout.take().context("its output")?).lines();
    let node = cluster.node();
    // It runs forever, and the test has its own time limit.
    let mut next = |word: &str| {
        let mut found = lines.by_ref().map_while(Result::ok);
        found.find(|line| line.contains(word)).with_context(|| format!("it ended before {word:?}"))
    };
    let outcome = cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &node)).and_then(|_| {
        let volume = cluster.bound("data")?.metadata.name.context("a name")?;
        Printed::row(&next("VOLUME")?, &["VOLUME", "NODE", "CLAIM", "SIZE", "PHASE"])?;
        Printed::row(&next("Bound")?, &[&volume, &node, &format!("{}/data", cluster.namespace), "8 MiB", "Bound"])?;
        cluster.delete_claim("data")?;
        Printed::row(&next("Deleted")?, &[&volume, &node]).map(drop)
    });
    watching.kill()?;
    watching.wait()?;
    outcome
}

fn volumes_are_told_with_their_pods(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &cluster.class, "8Mi"), &node))?;
    let volume = cluster.bound("data")?.metadata.name.context("a name")?;
    let pods: Api<Pod> = Api::namespaced(cluster.access.client(), &cluster.namespace);
    let made = from_value(pod("reader", &cluster.namespace, &["data"]))?;
    cluster.access.run(pods.create(&PostParams::default(), &made))?;
    let namespace = cluster.namespace.clone();
    let listed = as_json(cluster, &["volumes", "--namespace", &namespace])?;
    ensure!(listed[0]["name"] == volume && listed[0]["pods"] == json!(["reader"]), "{listed}");
    // This node has no kubelet that could be asked.
    ensure!(listed[0]["usedBytes"].is_null(), "{listed}");
    let wide = plugin(cluster, &["volumes", "-o", "wide", "--namespace", &namespace])?.succeeded()?;
    ensure!(wide.contains(&format!("what is used on node {node} is unknown")), "{wide}");
    let yaml = plugin(cluster, &["volumes", "-o", "yaml", "--node", &node])?.succeeded()?;
    ensure!(yaml.starts_with("---\n") && yaml.contains(&format!("name: {volume}")), "{yaml}");
    let none = as_json(cluster, &["volumes", "--namespace", &namespace, "--phase", "released"])?;
    ensure!(none == json!([]), "{none}");
    let impact = as_json(cluster, &["impact", &node])?;
    let one = &impact["volumes"][0];
    ensure!(one["name"] == volume && one["pods"] == json!(["reader"]) && impact["snapshots"] == json!([]), "{impact}");
    let impact = plugin(cluster, &["impact", &node])?.succeeded()?;
    Printed::row(&impact, &["CLAIM", "SIZE", "PHASE", "POLICY", "PODS"])?;
    Printed::row(&impact, &[&format!("{namespace}/data"), "8 MiB", "Bound", "Delete", "reader"])?;
    ensure!(impact.contains("1 volume of 1 namespace (8 MiB), and 1 pod with them"), "{impact}");
    let nothing = plugin(cluster, &["impact", "nobody"])?.succeeded()?;
    ensure!(nothing.contains("nothing is on node nobody"), "{nothing}");
    Ok(())
}

/// What a user may put in an annotation that the tools show: row and column, a cleared screen, the clipboard.
fn a_terminal_obeys_no_tenant(cluster: &mut Cluster) -> Result<()> {
    // Too long for a label, into which a policy would copy it.
    let hostile = &format!("\u{1b}[2J\u{1b}]52;c;eA==\u{7}\u{9b}31m\u{202e}\nready  forged  {}", "1".repeat(64));
    // Of a longer one the plugin reads nothing.
    let endless = "x".repeat(1000);
    for (name, node) in [("hostile", hostile), ("endless", &endless)] {
        cluster.create_claim(&on(claim(name, &cluster.class, "8Mi"), node))?;
    }
    cluster.access.wait(cluster.patience(), "the claims to wait for nodes that do not exist", || {
        let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
        for name in ["hostile", "endless"] {
            let full = format!("{}/{name}", cluster.namespace);
            ensure!(orphans.lines().any(|line| line.starts_with("waiting") && line.contains(&full)), "{orphans:?}");
        }
        ensure!(orphans.contains("\\u{1b}[2J") && orphans.contains("…  "), "{orphans:?}");
        ensure!(!orphans.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{7}']), "{orphans:?}");
        ensure!(!orphans.lines().any(|line| line.starts_with("ready")), "{orphans:?}");
        let json = plugin(cluster, &["orphans", "-o", "json"])?.succeeded()?;
        ensure!(!json.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{7}']), "{json:?}");
        let json: Value = serde_json::from_str(&json)?;
        let claims = json["waitingClaims"].as_array().context("no claims")?;
        ensure!(claims.iter().any(|claim| claim["node"] == hostile.as_str()), "{json}");
        Ok(())
    })?;
    for name in ["hostile", "endless"] {
        cluster.delete_claim(name)?;
    }
    Ok(())
}

fn a_user_without_rights_is_told_in_the_servers_words(cluster: &mut Cluster) -> Result<()> {
    let told = plugin(cluster, &["volumes", "--as", "nobody"])?.failed()?;
    let words = "persistentvolumes is forbidden: User \"nobody\" cannot list resource";
    ensure!(told.contains(words) && told.contains("https://") && told.contains("(403 Forbidden)"), "{told}");
    let json = plugin(cluster, &["volumes", "--as", "nobody", "-o", "json"])?.failed()?;
    let json: Value = serde_json::from_str(&json).with_context(|| format!("no JSON: {json}"))?;
    ensure!(json["error"]["code"] == "Forbidden", "{json}");
    Ok(())
}

fn pools_and_parts_are_read_from_the_agents(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|_| {})?;
    add_reachable_agent(cluster)?;
    let node = cluster.node();
    cluster.create_claim(&on(claim("data", &class, "8Mi"), &node))?;
    cluster.bound("data")?;
    let address: SocketAddr = monitoring::address(&cluster.agents[0].rig)?.parse()?;
    agent_pod(cluster, NAMESPACE, address.port(), true)?;
    // A tenant's pod cannot pose as an agent's, whatever its labels.
    agent_pod(cluster, &cluster.namespace, 1, true)?;

    // The agent checks its pools every half minute.
    cluster.access.wait(cluster.patience(), "the pool's volume", || {
        let pools = as_json(cluster, &["pools"])?;
        let own = |pool: &&Value| pool["node"] == node;
        let pool = pools.as_array().and_then(|all| all.iter().find(own)).context("no pool of the node")?;
        ensure!(pool["pool"] == "default" && pool["volumes"] == 1 && pool["promisedBytes"] == 8 << 20, "{pool}");
        // Pools on this host have no quotas.
        ensure!(pool["conditions"] == json!(["not_enforced"]), "{pool}");
        Ok(())
    })?;
    let pools = plugin(cluster, &["pools", "-o", "wide"])?.succeeded()?;
    Printed::row(&pools, &["NODE", "POOL", "SIZE", "AVAILABLE", "PROMISED", "USED", "VOLUMES", "CONDITION"])?;
    let told = Printed::row(&pools, &[&node, "default"])?;
    ensure!(told.contains("8 MiB") && told.contains("not_enforced"), "{told}");
    Printed::row(&pools, &["not_enforced:", "sizes are not enforced"])?;
    let doctor = plugin(cluster, &["doctor"])?;
    Printed::row(&doctor.text, &["note", &format!("pool default on {node}")])?;

    cluster.agents[0].rig.kill_helper()?;
    agent_pod(cluster, NAMESPACE, address.port(), false)?;
    cluster.access.wait(cluster.patience(), "the doctor to see that the helper is away", || {
        let doctor = plugin(cluster, &["doctor"])?;
        let told = Printed::row(&doctor.text, &["FAILED", &format!("node {node}")])?;
        ensure!(told.contains("the agent is not ready: helper"), "{told}");
        Ok(())
    })?;
    // What the helper said last is in the pod's status. It is text of others.
    has_ended(cluster, "main", "started\nno pool is \u{1b}[2Jthere\n")?;
    let doctor = plugin(cluster, &["doctor"])?;
    let told = Printed::row(&doctor.text, &["FAILED", &format!("node {node}")])?;
    ensure!(told.contains("; main ended: no pool is \\u{1b}[2Jthere"), "{told}");
    cluster.agents[0].rig.start_helper()
}

/// Lets the pod of the first agent look as if the kubelet waited before it starts a container again that has ended.
fn has_ended(cluster: &Cluster, container: &str, words: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(cluster.access.client(), NAMESPACE);
    let ended = json!({ "exitCode": 1, "reason": "Error", "message": words });
    let status = json!({
        "name": container, "image": "none", "imageID": "", "ready": false, "restartCount": 1,
        "state": { "waiting": { "reason": "CrashLoopBackOff" } }, "lastState": { "terminated": ended },
    });
    let patch = Patch::Strategic(json!({ "status": { "containerStatuses": [status] } }));
    cluster.access.run(pods.patch_status(&cluster.node(), &PatchParams::default(), &patch))?;
    Ok(())
}
