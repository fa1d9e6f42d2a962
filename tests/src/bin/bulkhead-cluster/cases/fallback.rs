//! Without the policy that labels claims, everything still works; agents only have more to watch. Without one that
//! confines them, nothing does.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::manifests;
use bulkhead_tests::cluster::node::TOPOLOGY_KEY;
use bulkhead_tests::cluster::objects::{PROVISIONER, claim, on};
use bulkhead_tests::monitoring;
use serde_json::json;

cases! {
    on Cluster;
    claims_are_found_without_the_policy: Bare + Recent + Alone("removes the policies"),
    claims_are_found_once_the_policy_is_gone: Bare + Recent + Alone("removes the policies"),
    claims_from_before_the_policy_are_found: Bare + Recent + Alone("removes the policies"),
    an_agent_works_only_while_it_is_confined: Alone("removes a policy"),
    an_agent_that_loses_a_policy_as_it_starts_works_again: Alone("removes a policy"),
}

/// Runs `test` while the policies that set labels are removed, and then applies them again.
fn without_labels(cluster: &mut Cluster, test: fn(&mut Cluster) -> Result<()>) -> Result<()> {
    let done = remove_policies(cluster).and_then(|()| test(cluster));
    // Later tests need the policies even if this one has failed.
    manifests::apply_cluster_wide(&cluster.access.kubeconfig())?;
    done
}

fn remove_policies(cluster: &mut Cluster) -> Result<()> {
    for name in ["bulkhead-claims", "bulkhead-volumes"] {
        manifests::remove(&cluster.access.kubeconfig(), "mutatingadmissionpolicybinding", name)?;
    }
    // A policy remains in effect for a moment after it is deleted.
    let class = cluster.add_class(|_| {})?;
    let probe = on(claim("probe", &class, "4Mi"), "elsewhere");
    cluster.create_claim(&probe)?;
    cluster.access.wait(cluster.patience(), "claims to be left without a label", || {
        cluster.delete_claim("probe")?;
        cluster.access.wait_until_gone(&cluster.claims(), "probe", cluster.patience())?;
        cluster.create_claim(&probe)?;
        let labels = labels_once_ours(cluster, "probe")?;
        ensure!(!labels.contains_key(TOPOLOGY_KEY), "it has {labels:?}");
        Ok(())
    })
}

/// The labels of a claim, read once the controller manager has annotated it with our driver. Until then the policy
/// ignores it.
fn labels_once_ours(cluster: &Cluster, name: &str) -> Result<BTreeMap<String, String>> {
    let what = "to be annotated with our driver";
    let claim = cluster.access.wait_for(&cluster.claims(), name, cluster.patience(), what, |claim| {
        let annotations = claim.metadata.annotations.clone().unwrap_or_default();
        ensure!(annotations.contains_key(PROVISIONER), "its annotations are {annotations:?}");
        Ok(())
    })?;
    Ok(claim.metadata.labels.unwrap_or_default())
}

fn claims_are_found_without_the_policy(cluster: &mut Cluster) -> Result<()> {
    without_labels(cluster, volumes_live_without_labels)
}

fn volumes_live_without_labels(cluster: &mut Cluster) -> Result<()> {
    let class = cluster.add_class(|_| {})?;
    cluster.add_agent()?;
    cluster.add_agent()?;
    let node = cluster.agents[1].node.clone();
    cluster.create_claim(&on(claim("data", &class, "8Mi"), &node))?;
    cluster.bound("data")?;
    cluster.agents[1].has_logged("watching the metadata of all claims")?;
    let immediate = cluster.add_class(|class| class["volumeBindingMode"] = json!("Immediate"))?;
    cluster.create_claim(&claim("anywhere", &immediate, "8Mi"))?;
    cluster.bound("anywhere")?;
    cluster.patch_claim("data", &json!({ "spec": { "resources": { "requests": { "storage": "16Mi" } } } }))?;
    cluster.access.wait_for(&cluster.claims(), "data", cluster.patience(), "to have grown", |claim| {
        let status = serde_json::to_value(&claim.status)?;
        ensure!(status["capacity"]["storage"] == "16Mi", "its status is {status}");
        Ok(())
    })?;
    let made: usize = cluster.agents.iter().map(|agent| agent.volumes().map(|found| found.len())).sum::<Result<_>>()?;
    ensure!(made == 2, "{made} volumes were created for two claims");
    Ok(())
}

/// An agent that relies on the policy hears of it when either of its two objects is gone.
fn claims_are_found_once_the_policy_is_gone(cluster: &mut Cluster) -> Result<()> {
    for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
        let class = cluster.add_class(|_| {})?;
        let agent = cluster.add_agent()?;
        agent.has_logged("watching claims by label")?;
        let (number, node) = (cluster.agents.len() - 1, cluster.agents.last().context("an agent")?.node.clone());
        let kubeconfig = cluster.access.kubeconfig();
        let found = manifests::remove(&kubeconfig, kind, "bulkhead-claims").and_then(|()| {
            cluster.access.wait(NOTICED, "the agent to watch all claims", || {
                cluster.agents[number].has_logged("watching the metadata of all claims")
            })?;
            cluster.create_claim(&on(claim(kind, &class, "8Mi"), &node))?;
            cluster.bound(kind).map(drop)
        });
        // Later tests need the policies even if this one has failed.
        manifests::apply_cluster_wide(&kubeconfig)?;
        found?;
    }
    Ok(())
}

fn claims_from_before_the_policy_are_found(cluster: &mut Cluster) -> Result<()> {
    without_labels(cluster, |cluster| {
        let class = cluster.add_class(|_| {})?;
        let immediate = cluster.add_class(|class| class["volumeBindingMode"] = json!("Immediate"))?;
        cluster.add_agent()?.rig.kill_frontend()?;
        cluster.create_claim(&on(claim("data", &class, "8Mi"), &cluster.node()))?;
        cluster.create_claim(&claim("anywhere", &immediate, "8Mi"))?;
        // The controller manager writes these claims once. If it did so after the policy is back, they would be
        // labelled.
        for name in ["data", "anywhere"] {
            labels_once_ours(cluster, name)?;
        }
        Ok(())
    })?;
    for name in ["data", "anywhere"] {
        let labels = labels_once_ours(cluster, name)?;
        ensure!(!labels.contains_key(TOPOLOGY_KEY), "{name} has the labels {labels:?}");
    }
    cluster.wait_until_policies_are_relied_on()?;
    cluster.agent().rig.start_frontend()?;
    let node = cluster.node();
    for name in ["data", "anywhere"] {
        cluster.bound(name)?;
        let labels = labels_once_ours(cluster, name)?;
        ensure!(labels.get(TOPOLOGY_KEY) == Some(&node), "{name} has the labels {labels:?}");
    }
    cluster.agents[0].has_logged("watching claims by label")
}

/// An agent watches the policies.
const NOTICED: Duration = Duration::from_secs(20);

fn an_agent_works_only_while_it_is_confined(cluster: &mut Cluster) -> Result<()> {
    let kubeconfig = cluster.access.kubeconfig();
    let name = "bulkhead-agent-volumes";
    let kubectl = |words: &[&str]| manifests::kubectl(&kubeconfig, words).map(drop);
    let whole = r#"{"spec":{"matchConstraints":{"objectSelector":null}}}"#;
    // What was patched is not what was applied, so that applying it again does not undo it.
    let restore = || {
        manifests::apply(&kubeconfig, "base")?;
        kubectl(&["patch", "validatingadmissionpolicy", name, "--type", "merge", "--patch", whole])
    };
    let narrow = r#"{"spec":{"matchConstraints":{"objectSelector":{"matchLabels":{"no":"object"}}}}}"#;
    let hollow = r#"{"spec":{"validations":[{"expression":"true"}]}}"#;
    let ways: [(&str, &dyn Fn() -> Result<()>); 3] = [
        ("Binding bulkhead-agent-volumes is missing", &|| {
            kubectl(&["delete", "validatingadmissionpolicybinding", name])
        }),
        ("does not match all that an agent can write", &|| {
            kubectl(&["patch", "validatingadmissionpolicy", name, "--type", "merge", "--patch", narrow])
        }),
        ("bulkhead-agent-volumes was edited, and lacks an expression of this release (validation: ", &|| {
            kubectl(&["patch", "validatingadmissionpolicy", name, "--type", "merge", "--patch", hollow])
        }),
    ];
    for (number, (why, weaken)) in ways.into_iter().enumerate() {
        let data = format!("data-{number}");
        let noticed = weaken().and_then(|()| {
            cluster
                .access
                .wait(NOTICED, "the agent to stop", || monitoring::check_ready(&cluster.agents[0].rig, 503, why))?;
            cluster.create_claim(&on(claim(&data, &cluster.class, "8Mi"), &cluster.node()))?;
            cluster.stays_pending(&data, Duration::from_secs(3))
        });
        // Later tests need the policies even if this one has failed.
        restore()?;
        noticed?;
        cluster.bound(&data)?;
        cluster.access.wait(cluster.patience(), "the agent to be ready again", || {
            monitoring::check_ready(&cluster.agents[0].rig, 200, "[+]agent ok")
        })?;
    }
    Ok(())
}

/// How long an upgrade that replaces a policy may leave it out.
const REPLACED_WITHIN: Duration = Duration::from_secs(4);

/// All agents that start while an upgrade replaces a policy see this, and nobody restarts them.
fn an_agent_that_loses_a_policy_as_it_starts_works_again(cluster: &mut Cluster) -> Result<()> {
    let kubeconfig = cluster.access.kubeconfig();
    let name = "bulkhead-agent-claims";
    for milliseconds in [0, 100, 300] {
        cluster.agent().rig.kill_frontend()?;
        cluster.agent().rig.launch_frontend()?;
        cluster.access.wait(cluster.patience(), "the agent to start", || {
            ensure!(cluster.agents[0].rig.frontend_log()?.contains(" working for Kubernetes node="), "it does not yet");
            Ok(())
        })?;
        sleep(Duration::from_millis(milliseconds));
        let lost = manifests::kubectl(&kubeconfig, &["delete", "validatingadmissionpolicybinding", name]);
        let noticed = lost.and_then(|_| {
            let why = format!("Binding {name} is missing");
            let check = || monitoring::check_ready(&cluster.agents[0].rig, 503, &why);
            cluster.access.wait(NOTICED, "the agent to stop", check)?;
            sleep(REPLACED_WITHIN);
            Ok(())
        });
        // Later tests need the policies even if this one has failed.
        manifests::apply(&kubeconfig, "base")?;
        noticed?;
        let data = format!("data-{milliseconds}");
        cluster.create_claim(&on(claim(&data, &cluster.class, "8Mi"), &cluster.node()))?;
        cluster.bound(&data)?;
        cluster.access.wait(cluster.patience(), "the agent to be ready again", || {
            monitoring::check_ready(&cluster.agents[0].rig, 200, "[+]agent ok")
        })?;
    }
    Ok(())
}
