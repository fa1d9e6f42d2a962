//! `cargo xtask release`: everything that users download.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::progress::{say, timed};
use crate::release::{self, Contents, Origin};
use crate::workspace::{Architecture, Workspace};

/// What `release` takes.
#[derive(Args)]
pub struct ReleaseArguments {
    /// The processors to build for. The programs for this host are built in any case: they write the manual pages.
    #[arg(long, value_enum, default_value_t = Processors::All)]
    arch: Processors,
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

/// Which processors a release is for.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Processors {
    /// x86_64.
    #[value(alias = "x86_64")]
    Amd64,
    /// aarch64.
    #[value(alias = "aarch64")]
    Arm64,
    /// Both.
    All,
}

/// Writes the files, and prints their checksums.
pub fn release(workspace: &Workspace, arguments: &ReleaseArguments) -> Result<ExitCode> {
    let origin = Origin::of(workspace)?;
    if !origin.is_committed() {
        say("the source differs from the last commit: this is no release that anybody else can build");
    }
    let architectures: &[Architecture] = match arguments.arch {
        Processors::Amd64 => &[Architecture::Amd64],
        Processors::Arm64 => &[Architecture::Arm64],
        Processors::All => &Architecture::ALL,
    };
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
    if !arguments.check {
        return Ok(ExitCode::SUCCESS);
    }
    for difference in &differences {
        println!("{difference}");
    }
    match differences.is_empty() {
        true => {
            println!("release: two builds are the same");
            Ok(ExitCode::SUCCESS)
        }
        false => {
            println!("release: FAILED: two builds differ");
            Ok(ExitCode::FAILURE)
        }
    }
}
