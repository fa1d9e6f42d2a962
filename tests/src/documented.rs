//! What the pages tell people to do, read from them and carried out.

use std::env;
use std::process::Command;

use anyhow::{Context, Result};

use crate::commands::Printed;
use crate::node::Kubectl;

/// docs/kubernetes.md.
pub const KUBERNETES: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kubernetes.md"));

/// docs/install.md.
pub const INSTALL: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/install.md"));

/// docs/disks.md.
pub const DISKS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/disks.md"));

/// docs/operate.md.
pub const OPERATE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operate.md"));

/// docs/platforms.md.
pub const PLATFORMS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/platforms.md"));

/// docs/release.md.
pub const RELEASE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/release.md"));

/// docs/snapshots.md.
pub const SNAPSHOTS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/snapshots.md"));

/// docs/backups.md.
pub const BACKUPS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/backups.md"));

/// Where the pages' paths start.
pub const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The file name of helm's program contains its version.
const HELM: &str = "helm() { \"$BULKHEAD_HELM\" \"$@\"; }";

/// Runs a shell's commands in the repository, with helm, kubectl, its plugin and a kubeconfig, up to the first that
/// fails.
pub fn run_all(kubectl: &Kubectl, commands: &str) -> Result<()> {
    let programs = kubectl.program.parent().context("kubectl has no directory")?;
    // kubectl-bulkhead is beside this program.
    let own = env::current_exe().context("find this program")?;
    let own = own.parent().context("this program is in no directory")?;
    let path = format!("{}:{}:{}", programs.display(), own.display(), env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{HELM}\nset -ex\n{commands}")]).current_dir(REPOSITORY);
    shell.env("PATH", &path).env("KUBECONFIG", &kubectl.kubeconfig);
    Printed::by(&mut shell)?.succeeded().map(drop)
}

/// The manifest of the first claim, and of the pod that uses it.
pub fn first_claim() -> Result<String> {
    blocks(section(KUBERNETES, "First claim in five minutes")?, "yaml").pop().context("no manifest")
}

/// The text below a page's heading of the second level, up to the next one.
pub fn section(page: &'static str, heading: &str) -> Result<&'static str> {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n")).with_context(|| format!("no section {heading}"))?;
    Ok(rest.split_once("\n## ").map_or(rest, |(section, _)| section))
}

/// The text below a heading of the third level in a section, up to the next one.
pub fn subsection<'a>(section: &'a str, heading: &str) -> Result<&'a str> {
    let (_, rest) = section.split_once(&format!("\n### {heading}\n")).with_context(|| format!("no part {heading}"))?;
    Ok(rest.split_once("\n### ").map_or(rest, |(part, _)| part))
}

/// The code blocks of a section in this language.
pub fn blocks(section: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    let blocks = section.split(&begin).skip(1).filter_map(|block| block.split_once("```"));
    blocks.map(|(block, _)| block.to_owned()).collect()
}
