//! Empty disks of a node that the chart makes pools.

use anyhow::{Result, ensure};
use bulkhead_tests::documented::run_all;
use bulkhead_tests::node::{Node, eventually};
use serde_json::json;

use crate::documented;
use crate::pods::{self, Mode};

/// What the chart shows.
pub const NAME: &str = "the chart makes an empty disk a pool";

/// The file behind the disk, and where the pool is mounted.
const IMAGE: &str = "/var/lib/empty-disk";
const POOL: &str = "/srv/bulkhead/disk-1";

/// The disk is shown first, and only then taken; it is mounted on the host, where a pod gets a volume of it.
pub fn are_prepared(node: &Node) -> Result<()> {
    let device = node.machine.run(&format!("truncate --size 1G {IMAGE} && losetup --find --show {IMAGE}"))?;
    let fstab = node.machine.run("cat /etc/fstab 2>/dev/null || true")?;
    let tried = is_shown(node, device.trim()).and_then(|()| is_taken(node)).and_then(|()| is_used(node));
    let removed = documented::helm_uninstall(node);
    node.machine.write("/etc/fstab", &fstab)?;
    node.machine.run(&format!(
        "{{ umount {POOL} || true; }} && systemctl daemon-reload && losetup --detach {} && rm -rf {IMAGE} {POOL}",
        device.trim()
    ))?;
    node.kubectl.delete(&["namespace", "bulkhead-system"])?;
    tried.and(removed)
}

/// What the container of the pod that runs now has said.
fn said(node: &Node) -> Result<String> {
    let namespace = "--namespace=bulkhead-system";
    node.kubectl.run(&[namespace, "rollout", "status", "daemonset/bulkhead", "--timeout=240s"])?;
    node.kubectl.run(&[namespace, "logs", "daemonset/bulkhead", "--container=prepare"])
}

fn is_shown(node: &Node, device: &str) -> Result<()> {
    let install = format!(
        "helm install bulkhead deploy/helm/bulkhead --namespace bulkhead-system --create-namespace \
         --set 'prepare.enabled=true,prepare.paths[0]={device},prepare.types[0]=loop' \
         --set 'pools[0].name=disk-1,pools[0].directory={POOL},pools[0].optional=true'"
    );
    run_all(&node.kubectl, &install)?;
    eventually(|| {
        let said = said(node)?;
        ensure!(said.contains("pool disk-1: to be formatted") && said.contains("nothing was changed"), "{said}");
        Ok(())
    })?;
    let signatures = node.machine.run(&format!("wipefs --noheadings {device}"))?;
    ensure!(signatures.is_empty(), "it was written to: {signatures}");
    Ok(())
}

fn is_taken(node: &Node) -> Result<()> {
    let upgrade = "helm upgrade bulkhead deploy/helm/bulkhead --namespace bulkhead-system --reuse-values \
                   --set prepare.write=true";
    run_all(&node.kubectl, upgrade)?;
    eventually(|| {
        let mounted = node.machine.run(&format!("findmnt --noheadings --output FSTYPE,OPTIONS {POOL} || true"))?;
        ensure!(mounted.starts_with("xfs") && mounted.contains("prjquota"), "the pool is mounted as {mounted:?}");
        Ok(())
    })?;
    let fstab = node.machine.run("cat /etc/fstab")?;
    ensure!(fstab.contains(&format!(" {POOL} xfs prjquota,nofail ")), "{fstab}");
    // What is ready is left as it is.
    node.kubectl.run(&["--namespace=bulkhead-system", "rollout", "restart", "daemonset/bulkhead"])?;
    eventually(|| {
        let said = said(node)?;
        ensure!(said.contains("nothing is to be done"), "{said}");
        Ok(())
    })
}

fn is_used(node: &Node) -> Result<()> {
    let mounts = json!([{ "name": "disk", "mountPath": pods::DIRECTORY }]);
    let manifests = [
        pods::claim("disk", "bulkhead", Mode::Filesystem, "16Mi"),
        pods::pod_of("disk", "sleep 3600", &["disk"], &mounts),
    ];
    manifests.iter().try_for_each(|manifest| node.kubectl.apply(&manifest.to_string()))?;
    let ready = node.kubectl.wait_ready(&["disk"]);
    node.kubectl.delete(&["pod/disk", "pvc/disk"])?;
    ready?;
    eventually(|| node.kubectl.gone(&["pv"]))
}
