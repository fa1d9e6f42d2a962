//! What operators see of the node.

use anyhow::Result;
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
