//! What docs/kubernetes.md tells a newcomer to do, read from there and done.

use std::env;
use std::process::Command;

use anyhow::{Context, Result};
use bulkhead_tests::commands::Printed;

use crate::story::Story;

const PAGE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kubernetes.md"));

/// The image of the page, and the one that the machine has instead: it reaches no registry.
const IMAGES: (&str, &str) = ("image: busybox", "image: bulkhead-shell:test");

/// The claim and the pod are applied as they stand there, and each command that follows succeeds.
pub fn the_first_claim_works(story: &mut Story<'_>) -> Result<()> {
    let section = section("First claim in five minutes")?;
    let manifest = blocks(section, "yaml").pop().context("no manifest")?;
    story.node.kubectl.apply(&manifest.replace(IMAGES.0, IMAGES.1))?;
    let kubectl = &story.node.kubectl;
    let programs = kubectl.program.parent().context("kubectl has no directory")?;
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
    // The last block of commands is what one sees then; those before it prepare the node, as this machine has been.
    let commands = blocks(section, "sh").pop().context("no commands")?;
    for line in commands.lines() {
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("PATH", &path).env("KUBECONFIG", &kubectl.kubeconfig);
        Printed::by(&mut shell)?.succeeded().with_context(|| line.to_owned())?;
    }
    Ok(())
}

/// The text below a heading, up to the next one.
fn section(heading: &str) -> Result<&'static str> {
    let (_, rest) = PAGE.split_once(&format!("\n## {heading}\n")).with_context(|| format!("no section {heading}"))?;
    Ok(rest.split_once("\n## ").map_or(rest, |(section, _)| section))
}

/// The blocks of a section that are marked as of this language.
fn blocks(section: &str, language: &str) -> Vec<String> {
    let begin = format!("```{language}\n");
    let blocks = section.split(&begin).skip(1).filter_map(|block| block.split_once("```"));
    blocks.map(|(block, _)| block.to_owned()).collect()
}
