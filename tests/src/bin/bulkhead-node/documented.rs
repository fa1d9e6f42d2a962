//! What docs/kubernetes.md tells newcomers to do.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::documented::{INSTALL, KUBERNETES, REPOSITORY, blocks, first_claim, run_all, section};
use bulkhead_tests::node::{Node, eventually};
use serde_json::json;

use crate::deployment::Deployment;
use crate::pods::{self, Mode};
use crate::story::Story;

/// The directory of the page's pool, and the one to use here, where the former is already in use.
const POOLS: (&str, &str) = ("/srv/bulkhead/default", "/srv/bulkhead/first");

/// The claim and the pod are applied exactly as on the page, and each command succeeds.
pub fn the_first_claim_works(story: &mut Story<'_>) -> Result<()> {
    let section = section(KUBERNETES, "First claim in five minutes")?;
    let [pool, agents, look] = blocks(section, "sh").try_into().ok().context("not three blocks of commands")?;
    prepare_pool(story, &pool)?;
    if story.deployment == Deployment::Container {
        run_all(&story.node.kubectl, &agents)?;
    }
    story.node.kubectl.apply(&first_claim()?)?;
    run_all(&story.node.kubectl, &look)?;
    if story.deployment == Deployment::Container {
        // Again with filesystems in images.
        story.deployment.install(story.node, &Path::new(REPOSITORY).join("deploy"))?;
    }
    Ok(())
}

/// Creates a pool, and removes it again: the node already has one.
fn prepare_pool(story: &Story<'_>, commands: &str) -> Result<()> {
    let machine = &story.node.machine;
    machine.run(&format!("set -e\n{}", commands.replace(POOLS.0, POOLS.1)))?;
    let mounted = machine.run(&format!("findmnt --noheadings --output FSTYPE,OPTIONS {}", POOLS.1))?;
    ensure!(mounted.starts_with("xfs") && mounted.contains("prjquota"), "the pool is mounted as {mounted}");
    machine.run(&format!("umount {0} && rmdir {0} && rm /var/lib/bulkhead.img", POOLS.1)).map(drop)
}

/// Installs the chart as the page says, with more flags, on a node that has none of it yet, and reports how long a claim
/// takes from there.
pub fn helm_install(node: &Node, flags: &str) -> Result<()> {
    let lines = KUBERNETES.lines().skip_while(|line| !line.starts_with("    helm install bulkhead deploy/"));
    let command = lines.take_while(|line| line.starts_with("    ")).collect::<Vec<_>>().join("\n");
    ensure!(command.contains("--set 'pools[0]"), "no command of helm with a pool: {command}");
    let (_, pools) = INSTALL.split_once("`--set 'pools[0]").context("no pool with filesystems in images")?;
    let (pools, _) = pools.split_once('`').context("no end of what is set")?;
    let start = Instant::now();
    run_all(&node.kubectl, &format!("{command} --set 'pools[0]{pools} {flags}"))?;
    let mounts = json!([{ "name": "timed", "mountPath": pods::DIRECTORY }]);
    let manifests = [
        pods::claim("timed", "bulkhead", Mode::Filesystem, "16Mi"),
        pods::pod_of("timed", "sleep 3600", &["timed"], &mounts),
    ];
    // The class does not exist until the chart has created it.
    eventually(|| manifests.iter().try_for_each(|manifest| node.kubectl.apply(&manifest.to_string())))?;
    node.kubectl.run(&["wait", "--for=jsonpath={.status.phase}=Bound", "--timeout=240s", "pvc/timed"])?;
    println!("helm install to a claim that is Bound: {:.1} s", start.elapsed().as_secs_f64());
    node.kubectl.delete(&["pod/timed", "pvc/timed"])
}

/// Removes what helm has installed.
pub fn helm_uninstall(node: &Node) -> Result<()> {
    run_all(&node.kubectl, "helm uninstall bulkhead --namespace bulkhead-system --wait --timeout 180s")
}
