//! `kubectl bulkhead`, with agents on a real control plane.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests::NAMESPACE;
use bulkhead_tests::cluster::network::POD_ADDRESS;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{SELECTED_NODE, claim, handle, on, pod, volume};
use bulkhead_tests::cluster::{manifests, node};
use bulkhead_tests::commands::{Printed, kubectl_bulkhead};
use bulkhead_tests::kubelet::DRIVER;
use bulkhead_tests::monitoring;
use bulkhead_tests::rig::Rig;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, from_value, json};

use super::nodes::lose_node;

cases! {
    on Cluster;
    nodes_pools_and_volumes_are_listed,
    volumes_are_watched,
    volumes_are_told_with_their_pods,
    a_terminal_obeys_no_tenant,
    a_user_without_rights_is_told_in_the_servers_words,
    pools_and_parts_are_read_from_the_agents: Bare,
    the_doctor_knows_the_policies_and_each_node,
    capacity_of_a_former_installation_is_named,
    a_class_that_is_not_granted_is_named,
    a_class_that_is_wrong_and_not_granted_is_named_once,
    a_class_that_no_node_can_serve_is_named,
    a_node_without_its_label_is_named,
    a_claim_that_no_agent_serves_is_named: Slow,
    a_volume_that_holds_a_claim_up_is_named,
    a_node_that_exists_is_not_released,
    a_lost_node_is_released,
}

pub fn plugin(cluster: &Cluster, arguments: &[&str]) -> Result<Printed> {
    Printed::by(kubectl_bulkhead(&cluster.access.kubeconfig())?.args(arguments))
}

pub fn as_json(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
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

/// Adds an agent whose metrics and probes the API server can reach as those of a pod.
pub fn add_reachable_agent(cluster: &mut Cluster) -> Result<()> {
    let prepare = |rig: &mut Rig| {
        monitoring::serve_at(rig, &format!("{POD_ADDRESS}:0"));
        rig.add_pool("default")
    };
    cluster.add_agent_with(prepare).map(drop)
}

/// Adds a claim called data, and waits until an agent that can be reached tells of its volume.
pub fn tell_of_a_volume(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|_| ())?;
    add_reachable_agent(cluster)?;
    cluster.create_claim(&on(claim("data", &class, "8Mi"), &cluster.node()))?;
    cluster.bound("data")?;
    let address: SocketAddr = monitoring::address(&cluster.agents[0].rig)?.parse()?;
    agent_pod(cluster, NAMESPACE, address.port(), true)?;
    // The agent looks at its volumes and pools every half minute.
    cluster.access.wait(cluster.patience(), "the agent to tell of its volumes", || {
        let volumes = as_json(cluster, &["volumes"])?;
        ensure!(volumes[0]["condition"]["state"] == "ok", "{volumes}");
        Ok(())
    })
}

/// Creates a pod labelled as an agent's, as the first node's kubelet would report it.
pub fn agent_pod(cluster: &Cluster, namespace: &str, port: u16, is_ready: bool) -> Result<()> {
    agent_pod_on(cluster, &cluster.node(), namespace, port, is_ready)
}

fn agent_pod_on(cluster: &Cluster, name: &str, namespace: &str, port: u16, is_ready: bool) -> Result<()> {
    let mut agent = pod(name, &cluster.namespace, &[]);
    agent["metadata"]["labels"] = json!({ "app.kubernetes.io/name": "bulkhead" });
    agent["spec"]["nodeName"] = json!(name);
    agent["spec"]["containers"][0]["name"] = json!("frontend");
    agent["spec"]["containers"][0]["ports"] = json!([{ "name": "metrics", "containerPort": port }]);
    let pods: Api<Pod> = Api::namespaced(cluster.access.client(), namespace);
    if cluster.access.run(pods.get_opt(name))?.is_none() {
        cluster.access.run(pods.create(&PostParams::default(), &from_value(agent)?))?;
    }
    let ready = json!({ "type": "Ready", "status": if is_ready { "True" } else { "False" } });
    let address = json!({ "ip": POD_ADDRESS });
    let status = json!({ "phase": "Running", "podIP": POD_ADDRESS, "podIPs": [address], "conditions": [ready] });
    let patch = Patch::Strategic(json!({ "status": status }));
    cluster.access.run(pods.patch_status(name, &PatchParams::default(), &patch))?;
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

fn the_doctor_knows_the_policies_and_each_node(cluster: &mut Cluster) -> Result<()> {
    let node = format!("node {}", cluster.node());
    cluster.access.wait(cluster.patience(), "the node to be well", || {
        // Other tests' nodes may not be healthy.
        let printed = plugin(cluster, &["doctor"])?;
        Printed::row(&printed.text, &["ok", "CSIDriver bulkhead.csi.local"])?;
        Printed::row(&printed.text, &["ok", "policies", "all 8 are in force"])?;
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

/// Its claims wait for a first pod, and the pod waits for capacity: nobody else would say why.
fn a_class_that_no_node_can_serve_is_named(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|class| class["parameters"] = json!({ "poool": "default" }))?;
    let node = cluster.node();
    cluster.event(&node, "StorageClassInvalid", &class)?;
    // Other tests have classes that are wrong, too.
    let (told, named) = ("no volume of this class can be made: ", format!(" class={class}"));
    cluster.access.wait(cluster.patience(), "the agent to log it, and only once", || {
        let log = cluster.agents[0].log()?;
        let lines: Vec<_> = log.lines().filter(|line| line.contains(told) && line.ends_with(&named)).collect();
        ensure!(matches!(lines[..], [line] if line.contains("poool")), "{lines:?}");
        Ok(())
    })?;
    let capacity = cluster.access.wait(cluster.patience(), "the class to have no capacity", || {
        let capacity = plugin(cluster, &["capacity"])?.succeeded()?;
        Printed::row(&capacity, &[&node, &class, "0 B", "0 B", "class-invalid"])?;
        Ok(capacity)
    })?;
    ensure!(capacity.contains(&format!("{class}: storage class {class}")) && capacity.contains("poool"), "{capacity}");
    let doctor = plugin(cluster, &["doctor"])?.failed()?;
    ensure!(Printed::row(&doctor, &["FAILED", "class", &class])?.contains("poool"), "{doctor}");
    Printed::row(&doctor, &["ok", "class", &cluster.class])?;
    Ok(())
}

/// Nobody has granted it either, which is news no second time.
fn a_class_that_is_wrong_and_not_granted_is_named_once(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class_without_grant(|class| class["mountOptions"] = json!(["context=label"]))?;
    cluster.event(&cluster.node(), "StorageClassInvalid", &class)?;
    // Long enough for several attempts to publish.
    std::thread::sleep(Duration::from_secs(3));
    let (told, named) = ("no volume of this class can be made: ", format!(" class={class}"));
    let log = cluster.agents[0].log()?;
    let lines: Vec<_> = log.lines().filter(|line| line.contains(told) && line.ends_with(&named)).collect();
    ensure!(matches!(lines[..], [line] if line.contains("mount flag")), "{lines:?}");
    Ok(())
}

/// Somebody has made a class and not granted it.
fn a_class_that_is_not_granted_is_named(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let class = cluster.add_class_without_grant(|class| {
        class["volumeBindingMode"] = json!("Immediate");
        // Not for the nodes of other tests.
        class["allowedTopologies"] = json!([{ "matchLabelExpressions": [{ "key": TOPOLOGY_KEY, "values": [node] }] }]);
    })?;
    cluster.event(&node, "StorageClassInvalid", "granted the verb provision")?;
    cluster.create_claim(&claim("early", &class, "8Mi"))?;
    cluster.event("early", "ProvisioningFailed", "granted the verb take")?;
    cluster.delete_claim("early")?;
    let told = plugin(cluster, &["doctor"])?.failed()?;
    let told = Printed::row(&told, &["FAILED", "class", &class])?;
    let commands: Vec<_> = told.split('`').filter(|part| part.starts_with("kubectl create clusterrole")).collect();
    ensure!(commands.len() == 2, "{told}");
    for command in commands {
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        manifests::kubectl(&cluster.access.kubeconfig(), &words)?;
    }
    // The agent looks once a minute.
    cluster.capacity(&class, &node).or_else(|_| cluster.capacity(&class, &node))?;
    cluster.create_claim(&claim("data", &class, "8Mi"))?;
    cluster.bound("data")?;
    Printed::row(&plugin(cluster, &["doctor"])?.text, &["ok", "class", &class]).map(drop)
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

fn a_node_that_exists_is_not_released(cluster: &mut Cluster) -> Result<()> {
    let node = cluster.node();
    let told = plugin(cluster, &["release-node", &node, "--yes"])?.failed()?;
    ensure!(told.contains("still exists") && told.contains("kubectl delete node"), "{told}");
    let nobody = plugin(cluster, &["release-node", "no-such-node"])?.succeeded()?;
    ensure!(nobody.contains("nothing refers to node no-such-node"), "{nobody}");
    Ok(())
}

fn a_lost_node_is_released(cluster: &mut Cluster) -> Result<()> {
    let (gone, volume) = lose_node(cluster)?;
    node::delete(&cluster.access, &gone)?;
    let (lost, waiting) = (format!("{}/there", cluster.namespace), format!("{}/waiting", cluster.namespace));
    cluster.access.wait(cluster.patience(), "the controller manager to leave the claim to the driver", || {
        let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
        Printed::row(&orphans, &["lost", &gone, &lost, "8 MiB", &volume])?;
        Printed::row(&orphans, &["waiting", &gone, &waiting, "8 MiB"])?;
        Ok(())
    })?;
    let nodes = plugin(cluster, &["nodes"])?.succeeded()?;
    Printed::row(&nodes, &[&gone, "lost", "1"])?;

    // Nothing is done before it is confirmed.
    let told = plugin(cluster, &["release-node", &gone])?.failed()?;
    ensure!(told.contains(&volume) && told.contains("--yes"), "{told}");
    manifests::kubectl(&cluster.access.kubeconfig(), &["get", "pv", &volume])?;

    let told = plugin(cluster, &["release-node", &gone, "--yes"])?.succeeded()?;
    ensure!(told.contains("1 volume given up, 1 waiting claim given back"), "{told}");
    cluster.volume_gone(&volume)?;
    let elsewhere = cluster.bound("waiting")?.metadata.labels.context("labels")?;
    ensure!(elsewhere.get(TOPOLOGY_KEY) == Some(&cluster.node()), "it has {elsewhere:?}");
    let orphans = plugin(cluster, &["orphans"])?.succeeded()?;
    ensure!(!orphans.contains(&gone), "{orphans}");
    let doctor = cluster.access.wait(cluster.patience(), "a note of the node's pod", || {
        // The control plane collects it, since its node is gone: now, or within a minute.
        agent_pod_on(cluster, &gone, NAMESPACE, 1, true)?;
        let doctor = plugin(cluster, &["doctor"])?.text;
        Printed::row(&doctor, &["note", "node", &gone, "does not exist any more"])?;
        Ok(doctor)
    })?;
    ensure!(!doctor.lines().any(|line| line.starts_with("FAILED") && line.contains(&gone)), "{doctor}");
    let pods: Api<Pod> = Api::namespaced(cluster.access.client(), NAMESPACE);
    cluster.access.run(async {
        match pods.delete(&gone, &DeleteParams::default().grace_period(0)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            deleted => deleted.map(drop),
        }
    })?;
    // The agents no longer care about the volume on the lost node's disk.
    cluster.agents[1].rig.start_frontend()?;
    let csi = cluster.agents[1].rig.csi()?;
    csi.delete_volume(bulkhead_tests::csi::requests::delete(handle(&volume)))?;
    Ok(())
}
