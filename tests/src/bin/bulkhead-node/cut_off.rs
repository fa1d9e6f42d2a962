//! What docs/release.md says to do with a release's files where nodes have no way out: the images are taken from a registry
//! inside, or are imported. All that there is besides is what was carried in.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::documented::{RELEASE, blocks, first_claim, run_all, section};
use bulkhead_tests::node::{Node, Registry, Release, eventually};
use serde_json::Value;

use crate::{deployment, documented, quick_starts};

/// What the case shows.
pub const NAME: &str = "the first claim where the node has no way out";

/// Where the files are on the node.
const CARRIED: &str = "/var/tmp/release";

/// Follows the page in both ways, and undoes it.
pub fn without_a_way_out(node: &Node) -> Result<()> {
    let section = section(RELEASE, "Where nodes have no way out")?;
    let [mirror, import, install] = blocks(section, "sh").try_into().ok().context("not three blocks of commands")?;
    let release = Release::given()?;
    forget_images(node, &release)?;
    let cut_off = node.cut_off()?;

    // First: of what it has pulled, a kubelet uses nothing under another name before it has asked that one's registry.
    for image in ["frontend", "privhelper"] {
        let archive = release.fill_in(&format!("bulkhead-{image}-VERSION.oci.tar"));
        node.carry(&release.directory.join(archive), CARRIED)?;
    }
    node.machine.run(&format!("set -e; cd {CARRIED}\n{}", release.fill_in(&import)))?;
    node.machine.run(&format!("rm -r {CARRIED}"))?;
    let named = release.fill_in("REGISTRY");
    is_followed(node, &release, &release.fill_in(&install), &named).context("with imported images")?;
    quick_starts::from_one_file(node, &release)?;

    let registry = Registry::empty(node, &release)?;
    let mirror = registry.fill_in(&mirror.replace("MIRROR", &registry.mirror()?));
    is_followed(node, &release, &mirror, &registry.mirror()?).context("with a registry inside")?;
    drop(registry);
    drop(cut_off);
    Ok(())
}

/// Runs commands in the directory of the release, uses a first claim, and removes what was installed.
fn is_followed(node: &Node, release: &Release, commands: &str, repository: &str) -> Result<()> {
    run_all(&node.kubectl, &format!("cd {}\n{commands}", release.directory.display()))?;
    let tried = deployment::wait_until_ready(node)
        .and_then(|()| images_are_from(node, repository))
        .and_then(|()| eventually(|| node.kubectl.apply(&first_claim()?)))
        .and_then(|()| node.kubectl.wait_ready(&["first"]))
        .and_then(|()| quick_starts::last(node));
    tried.and(documented::helm_uninstall(node))
}

/// The agent's pod runs what its release calls so.
fn images_are_from(node: &Node, repository: &str) -> Result<()> {
    let pods = node.kubectl.get(&[deployment::AGENT[0], "pods"])?;
    let containers = pods["items"][0]["spec"]["containers"].as_array().context("no pod of an agent")?;
    let is_from = |container: &Value| {
        container["image"].as_str().is_some_and(|image| image.starts_with(repository) && image.contains("@sha256:"))
    };
    ensure!(!containers.is_empty() && containers.iter().all(is_from), "not from {repository}: {containers:?}");
    Ok(())
}

/// Removes what an earlier installation may have taken from the release's registry.
fn forget_images(node: &Node, release: &Release) -> Result<()> {
    let registry = release.fill_in("REGISTRY");
    let images = "ctr --namespace k8s.io images";
    node.machine.run(&format!("{images} ls -q | grep '^{registry}/' | xargs -r {images} rm")).map(drop)
}
