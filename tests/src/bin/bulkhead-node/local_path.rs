//! The first claim with local-path-provisioner, which many clusters have because it needs no disk either.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bulkhead_tests::documented::first_claim;
use bulkhead_tests::node::{Node, eventually};

const MANIFEST: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/local-path/manifest.yaml"));

/// Where its volumes are.
const DIRECTORY: &str = "/opt/local-path-provisioner";

/// Applies its manifest, and the claim and the pod of the page with its class. Returns how long it took until that ran.
pub fn first_claim_runs(node: &Node) -> Result<Duration> {
    let kubectl = &node.kubectl;
    let start = Instant::now();
    kubectl.apply(MANIFEST)?;
    let ours = first_claim()?;
    let claim = ours.replace("storageClassName: bulkhead\n", "storageClassName: local-path\n");
    ensure!(claim != ours, "the first claim names no class of ours: {ours}");
    kubectl.apply(&claim)?;
    let tried = kubectl.wait_ready(&["first"]).map(|()| start.elapsed());
    kubectl.delete(&["pod/first", "persistentvolumeclaim/first"])?;
    eventually(|| kubectl.gone(&["pv"]))?;
    kubectl.delete(&["deployment/local-path-provisioner", "--namespace=local-path-storage", "--cascade=foreground"])?;
    kubectl.delete(&[
        "namespace/local-path-storage",
        "storageclass/local-path",
        "clusterrole/local-path-provisioner",
        "clusterrolebinding/local-path-provisioner",
    ])?;
    node.machine.run(&format!("rm -rf {DIRECTORY}"))?;
    tried
}
