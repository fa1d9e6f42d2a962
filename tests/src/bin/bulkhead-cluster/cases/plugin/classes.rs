//! Classes of which no volume can be made: the agents, the doctor and the list of capacity say why.

use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::claim;
use bulkhead_tests::commands::Printed;
use serde_json::json;

use super::plugin;

cases! {
    on Cluster;
    a_class_that_is_not_granted_is_named,
    a_class_that_is_wrong_and_not_granted_is_named_once,
    a_class_that_no_node_can_serve_is_named,
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
