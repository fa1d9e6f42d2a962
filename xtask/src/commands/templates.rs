//! `cargo xtask templates`: the filesystems that the helper writes into fresh images.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::templates;
use crate::workspace::Workspace;

/// What `templates` takes.
#[derive(Args)]
pub struct TemplatesArguments {
    /// Write nothing: print what the files hold, one run of bytes a line.
    #[arg(long)]
    print: bool,
}

/// Makes the files anew and prints their paths.
pub fn templates(workspace: &Workspace, arguments: &TemplatesArguments) -> Result<ExitCode> {
    if arguments.print {
        // Whoever reads only the beginning closes the pipe.
        let _ = io::stdout().write_all(templates::as_text(workspace)?.as_bytes());
        return Ok(ExitCode::SUCCESS);
    }
    for path in templates::write(workspace)? {
        println!("{}", path.display());
    }
    Ok(ExitCode::SUCCESS)
}
