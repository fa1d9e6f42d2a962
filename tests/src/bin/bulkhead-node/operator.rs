//! What operators see of the node.

use anyhow::{Result, ensure};
use bulkhead_tests::commands::{Printed, kubectl_bulkhead};
use bulkhead_tests::node::{NAME, eventually};

use crate::deployment::AGENT;
use crate::story::Story;

/// `kubectl bulkhead doctor`, and `bulkheadctl doctor` in the frontend's container, where it finds the helper.
pub fn doctors_find_nothing_wrong(story: &mut Story<'_>) -> Result<()> {
    let kubectl = &story.node.kubectl;
    eventually(|| {
        let told = Printed::by(kubectl_bulkhead(&kubectl.kubeconfig)?.arg("doctor"))?.succeeded()?;
        Printed::row(&told, &["ok", "agents", "1 of 1 are ready"])?;
        Printed::row(&told, &["ok", &format!("node {NAME}")]).map(drop)
    })?;
    let [namespace, kind, name] = AGENT;
    let agent = format!("{kind}/{name}");
    // A kubelet that has only just started may not run commands yet.
    eventually(|| {
        let told = kubectl.run(&[namespace, "exec", &agent, "--container=frontend", "--", "/bulkheadctl", "doctor"])?;
        Printed::row(&told, &["ok", "helper", "answers"])?;
        Printed::row(&told, &["ok", "pool default"]).map(drop)
    })
}

/// The pool is said to be as it should be.
pub fn the_pool_is_healthy(story: &Story<'_>) -> Result<()> {
    let told = Printed::by(kubectl_bulkhead(&story.node.kubectl.kubeconfig)?.arg("pools"))?.succeeded()?;
    let row = Printed::row(&told, &[NAME, "default"])?;
    ensure!(row.ends_with("healthy") && row.contains("iB"), "{told}");
    Ok(())
}

/// The plugin has no other way to the agent than the API server's proxy to its pod, and to the kubelet.
pub fn the_pool_is_listed(story: &mut Story<'_>) -> Result<()> {
    let kubeconfig = &story.node.kubectl.kubeconfig;
    eventually(|| {
        the_pool_is_healthy(story)?;
        let told = Printed::by(kubectl_bulkhead(kubeconfig)?.args(["volumes", "--output", "wide"]))?.succeeded()?;
        ensure!(told.contains("  ok  ") && !told.contains("unknown"), "{told}");
        Ok(())
    })
}
