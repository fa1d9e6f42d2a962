//! `cargo xtask release`: everything that users download.

use std::path::PathBuf;
use std::process::ExitCode;
use std::slice;

use anyhow::Result;
use clap::Args;

use crate::progress::{say, timed};
use crate::release::{self, Contents, Origin};
use crate::workspace::{Architecture, Workspace};

/// What `release` takes.
#[derive(Args)]
pub struct Arguments {
    /// The processor to build for (default: both). The programs for this host are built in any case: they write the manual
    /// pages.
    #[arg(long, value_enum)]
    arch: Option<Architecture>,
    /// Where the files go (default: bulkhead-VERSION in cargo's target directory). An earlier release there is replaced.
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// Where the images will be pushed to, such as registry.example.com/storage. The chart and the manifests refer to them
    /// there. Without it they refer to images that are imported on each node.
    #[arg(long, value_name = "REGISTRY")]
    registry: Option<String>,
    /// Build a second time, from a copy of the source in another directory and with nothing built before, and fail unless
    /// all files are the same.
    #[arg(long)]
    check: bool,
}

/// Writes the files, and prints their checksums.
pub fn execute(workspace: &Workspace, arguments: &Arguments) -> Result<ExitCode> {
    let origin = Origin::of(workspace)?;
    if !origin.is_committed() {
        say("the source differs from the last commit: this is no release that anybody else can build");
    }
    let architectures = arguments.arch.as_ref().map_or(&Architecture::ALL[..], slice::from_ref);
    let contents = Contents { origin: &origin, architectures, registry: arguments.registry.as_deref() };
    let directory =
        arguments.output.clone().unwrap_or_else(|| workspace.target.join(format!("bulkhead-{}", release::VERSION)));
    release::write(workspace, &contents, &directory)?;
    let differences = match arguments.check {
        true => timed("building a second time", || release::check(workspace, &contents, &directory))?,
        false => Vec::new(),
    };
    for (name, sum) in release::checksums(&directory)? {
        println!("{sum}  {name}");
    }
    say(format_args!("the files are in {}", directory.display()));
    for difference in &differences {
        println!("{difference}");
    }
    if !differences.is_empty() {
        println!("release: FAILED: two builds differ");
        return Ok(ExitCode::FAILURE);
    }
    if arguments.check {
        println!("release: two builds are the same");
    }
    Ok(ExitCode::SUCCESS)
}
