//! `cargo xtask audit`: one page for a reviewer of the privileged code.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::audit;
use crate::workspace::Workspace;

/// What `audit` takes.
#[derive(Args)]
pub struct AuditArguments {
    /// Write the page for a program instead of a person.
    #[arg(long)]
    json: bool,
    /// Also build the helper, optimized and twice, and print its hash. This takes minutes.
    #[arg(long)]
    build: bool,
}

/// Prints the page.
pub fn audit(workspace: &Workspace, arguments: &AuditArguments) -> Result<ExitCode> {
    let page = audit::page(workspace, arguments.build)?;
    match arguments.json {
        true => println!("{:#}", audit::as_json(&page)),
        false => print!("{}", audit::as_text(&page)),
    }
    Ok(ExitCode::SUCCESS)
}
