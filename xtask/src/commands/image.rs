//! `cargo xtask image`: the container images.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::image;
use crate::progress::timed;
use crate::workspace::{Architecture, Profile, Selection, Workspace};

/// What `image` takes.
#[derive(Args)]
pub struct ImageArguments {
    /// The processor that the programs are for.
    #[arg(long, value_enum, default_value_t = Architecture::host())]
    arch: Architecture,
    /// Build without the optimizations of a release, which is quicker.
    #[arg(long)]
    dev: bool,
    /// Where the archives go (default: images in cargo's target directory).
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

/// Builds the programs, writes the archives, and prints their paths.
pub fn image(workspace: &Workspace, arguments: &ImageArguments) -> Result<ExitCode> {
    let profile = if arguments.dev { Profile::Dev } else { Profile::Release };
    timed("building", || workspace.build(Selection::Shipped, arguments.arch, profile))?;
    let directory = arguments.output.clone().unwrap_or_else(|| workspace.target.join("images"));
    let built = |name: &str| workspace.program(name, arguments.arch, profile);
    for path in image::write(built, arguments.arch, &directory)? {
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
