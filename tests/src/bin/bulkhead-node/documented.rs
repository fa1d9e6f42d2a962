//! What docs/kubernetes.md tells newcomers to do, read from the page and carried out.

use std::env;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::commands::Printed;
use bulkhead_tests::node::{Node, eventually};

use crate::deployment::Deployment;
use crate::pods::{self, Mode};
use crate::story::Story;

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kubernetes.md"));

/// The image on the page, and the one to use instead: the machine cannot reach a registry.
const IMAGES: (&str, &str) = ("image: busybox", "image: bulkhead-shell:test");

/// The directory of the page's pool, and the one to use here, where the former is already in use.
const POOLS: (&str, &str) = ("/srv/bulkhead/default", "/srv/bulkhead/first");

/// Where the page's paths start.
const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The claim and the pod are applied exactly as on the page, and each command succeeds.
pub fn the_first_claim_works(story: &mut Story<'_>) -> Result<()> {
    let section = section("First claim in five minutes")?;
    let [pool, agents, look] = blocks(section, "sh").try_into().ok().context("not three blocks of commands")?;
    prepare_pool(story, &pool)?;
    if story.deployment == Deployment::Container {
        run_all(story.node, &agents)?;
    }
    let manifest = blocks(section, "yaml").pop().context("no manifest")?;
    story.node.kubectl.apply(&manifest.replace(IMAGES.0, IMAGES.1))?;
    run_all(story.node, &look)
}

/// Creates a pool, and removes it again: the node already has one.
fn prepare_pool(story: &Story<'_>, commands: &str) -> Result<()> {
    let machine = &story.node.machine;
    machine.run(&format!("set -e\n{}", commands.replace(POOLS.0, POOLS.1)))?;
    let mounted = machine.run(&format!("findmnt --noheadings --output FSTYPE,OPTIONS {}", POOLS.1))?;
    ensure!(mounted.starts_with("xfs") && mounted.contains("prjquota"), "the pool is mounted as {mounted}");
    machine.run(&format!("umount {0} && rmdir {0} && rm /var/lib/bulkhead.img", POOLS.1)).map(drop)
}

/// Installs the chart as the page says, on a node that has none of it yet, and reports how long a claim takes from
/// there.
pub fn helm_install(node: &Node) -> Result<()> {
    let begins = "helm install bulkhead deploy/";
    let command = PAGE.lines().map(str::trim).find(|line| line.starts_with(begins)).context("no command of helm")?;
    let start = Instant::now();
    run_all(node, command)?;
    let manifests = [pods::claim("timed", Mode::Filesystem, "16Mi"), pods::pod("timed", "sleep 3600", "timed", None)];
    // The class does not exist until the chart has created it.
    eventually(|| manifests.iter().try_for_each(|manifest| node.kubectl.apply(&manifest.to_string())))?;
    node.kubectl.run(&["wait", "--for=jsonpath={.status.phase}=Bound", "--timeout=240s", "pvc/timed"])?;
    println!("helm install to a claim that is Bound: {:.1} s", start.elapsed().as_secs_f64());
    node.kubectl.delete(&["pod/timed", "pvc/timed"])
}

/// Removes what helm has installed.
pub fn helm_uninstall(node: &Node) -> Result<()> {
    run_all(node, "helm uninstall bulkhead --namespace bulkhead-system --wait --timeout 180s")
}

/// The file name of helm's program contains its version.
const HELM: &str = "helm() { \"$BULKHEAD_HELM\" \"$@\"; }";

/// Runs commands in the repository, with helm, kubectl and a kubeconfig.
fn run_all(node: &Node, commands: &str) -> Result<()> {
    let kubectl = &node.kubectl;
    let programs = kubectl.program.parent().context("kubectl has no directory")?;
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
    for line in commands.lines() {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{HELM}\n{line}")]).current_dir(REPOSITORY);
        shell.env("PATH", &path).env("KUBECONFIG", &kubectl.kubeconfig);
        Printed::by(&mut shell)?.succeeded().with_context(|| line.to_owned())?;
    }
    Ok(())
}

/// The text below a heading, up to the next one.
fn section(heading: &str) -> Result<&'static str> {
    let (_, rest) = PAGE.split_once(&format!("\n## {heading}\n")).with_context(|| format!("no section {heading}"))?;
    Ok(rest.split_once("\n## ").map_or(rest, |(section, _)| section))
}

/// The code blocks of a section in this language.
fn blocks(section: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    let blocks = section.split(&begin).skip(1).filter_map(|block| block.split_once("```"));
    blocks.map(|(block, _)| block.to_owned()).collect()
}
