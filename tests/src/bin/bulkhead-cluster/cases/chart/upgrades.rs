//! Upgrades of a release, those that fail, and how each is taken back.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::{Cluster, PATIENCE, node};
use serde_json::{Value, json};

use super::NAMESPACE;
use super::released::Released;

cases! {
    on Cluster;
    an_upgrade_can_be_taken_back: Bare + Long + Alone("it has a control plane of its own"),
}

/// Two pools, where the release has one.
fn two_pools() -> Value {
    json!([
        { "name": "default", "directory": "/srv/bulkhead/default" },
        { "name": "fast", "directory": "/srv/bulkhead/b" },
    ])
}

/// Tolerations of which only the API server knows that they are wrong. helm changes other objects before the DaemonSet.
fn wrong() -> Value {
    json!([{ "operator": "Perhaps" }])
}

/// One after another, because each needs a release that is in order, and leaves one.
fn an_upgrade_can_be_taken_back(_: &mut Cluster) -> Result<()> {
    let released = Released::installed()?;
    node::make(&released.access, "node", &[])?;
    settle(&released)?;
    helm_says_what_to_do_next_and_no_more(&released)?;
    a_changed_configuration_is_rolled_out(&released)?;
    an_upgrade_that_fails_half_way_is_rolled_back(&released)?;
    an_atomic_upgrade_rolls_itself_back(&released)?;
    what_a_failed_upgrade_no_longer_had_needs_a_second_rollback(&released)?;
    kubectl_takes_back_the_pods_and_not_their_configuration(&released)
}

/// Waits until the DaemonSet's controller has seen the latest change, and therefore remembers it for `rollout undo`.
fn settle(released: &Released) -> Result<()> {
    released.access.wait(PATIENCE, "the DaemonSet to be seen by its controller", || {
        let set = released.get("daemonset", "bulkhead")?;
        let (seen, latest) = (&set["status"]["observedGeneration"], &set["metadata"]["generation"]);
        ensure!(seen == latest, "generation {seen} of {latest}");
        Ok(())
    })
}

fn helm_says_what_to_do_next_and_no_more(released: &Released) -> Result<()> {
    let notes = released.helm("get notes", &[])?.succeeded()?;
    for part in [
        "\n   /srv/bulkhead/default, mounted by you\n",
        "\n   kubectl --namespace bulkhead-system rollout status daemonset bulkhead\n",
        "\n   kubectl bulkhead doctor\n",
        ": bulkhead, bulkhead-retain\n",
        "docs/kubernetes.md#uninstall",
    ] {
        ensure!(notes.contains(part), "no {part:?} in {notes}");
    }
    ensure!(notes.trim().lines().count() <= 14, "{notes}");
    Ok(())
}

fn a_changed_configuration_is_rolled_out(released: &Released) -> Result<()> {
    let (template, flags) = (released.template()?, released.flags()?);
    released.upgrade(&json!({ "pools": two_pools() }))?.succeeded()?;
    ensure!(released.template()? != template, "the pods are not replaced");
    ensure!(released.flags()?.contains("--pool fast=/srv/bulkhead/b"), "{}", released.flags()?);
    released.helm("rollback", &["1"])?.succeeded()?;
    ensure!(released.template()? == template && released.flags()? == flags, "it is not as it was");
    // Nothing has changed, so no pod is replaced.
    released.upgrade(&json!({}))?.succeeded()?;
    ensure!(released.template()? == template, "the pods are replaced");
    released.check_complete()
}

fn an_upgrade_that_fails_half_way_is_rolled_back(released: &Released) -> Result<()> {
    let (template, flags) = (released.template()?, released.flags()?);
    let told = released.upgrade(&json!({ "pools": two_pools(), "tolerations": wrong() }))?.failed()?;
    ensure!(told.contains("Perhaps"), "{told}");
    ensure!(released.flags()? != flags && released.template()? == template, "it has not failed half-way");
    released.helm("rollback", &[])?.succeeded()?;
    ensure!(released.template()? == template && released.flags()? == flags, "it is not as it was");
    released.check_complete()
}

fn an_atomic_upgrade_rolls_itself_back(released: &Released) -> Result<()> {
    let (template, flags) = (released.template()?, released.flags()?);
    let values = json!({ "pools": two_pools(), "tolerations": wrong() });
    let told = released.apply("upgrade", &["--atomic", "--timeout", "60s"], &values)?.failed()?;
    ensure!(told.contains("has been rolled back"), "{told}");
    ensure!(released.template()? == template && released.flags()? == flags, "it is not as it was");
    released.check_complete()
}

/// helm compares with what the failed revision should have had, and so takes an object for missing that is still there.
fn what_a_failed_upgrade_no_longer_had_needs_a_second_rollback(released: &Released) -> Result<()> {
    let history: Value = serde_json::from_str(&released.helm("history", &["--output", "json"])?.succeeded()?)?;
    let good =
        history.as_array().and_then(|all| all.last()).map(|last| last["revision"].to_string()).unwrap_or_default();
    let values = json!({ "storageClasses": [{ "name": "bulkhead" }], "tolerations": wrong() });
    released.upgrade(&values)?.failed()?;
    let told = released.helm("rollback", &[&good])?.failed()?;
    ensure!(told.contains("no StorageClass with the name \"bulkhead-retain\" found"), "{told}");
    released.helm("rollback", &[&good])?.succeeded()?;
    released.check_complete()
}

fn kubectl_takes_back_the_pods_and_not_their_configuration(released: &Released) -> Result<()> {
    let template = released.template()?;
    let image = json!({ "tag": "next" });
    released.upgrade(&json!({ "pools": two_pools(), "frontend": { "image": image } }))?.succeeded()?;
    settle(released)?;
    let flags = released.flags()?;
    released.kubectl.run(&["--namespace", NAMESPACE, "rollout", "undo", "daemonset/bulkhead"])?;
    ensure!(released.template()? == template, "{:#}\ninstead of\n{template:#}", released.template()?);
    // The pods find the configuration under the same name, but not an earlier one.
    ensure!(released.flags()? == flags, "{}", released.flags()?);
    ensure!(released.check_complete().is_err(), "helm knows nothing of this");
    released.helm("rollback", &[])?.succeeded()?;
    ensure!(released.template()? == template && released.flags()? != flags, "it is not as it was");
    released.check_complete()
}
