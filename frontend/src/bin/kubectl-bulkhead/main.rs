//! `kubectl bulkhead`: the volumes of all nodes, with the user's own rights. kubectl finds this program by its name.
#![deny(clippy::print_stderr, clippy::print_stdout, reason = "what is printed passes through `report`")]

mod agents;
mod cluster;
mod doctor;
mod lost;
mod nodes;
mod options;
mod pools;
mod release;
mod volumes;

use std::process::ExitCode;

use bulkhead_frontend::report;
use clap::Parser;

use cluster::{Cluster, Failure};
use options::{Command, Options, Output};

/// What its users call it.
const NAME: &str = "kubectl bulkhead";

fn main() -> ExitCode {
    let options = Options::parse();
    let format = options.format();
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::Runtime)
        .and_then(|runtime| runtime.block_on(run(options)));
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            report::fail(NAME, format, &failure.code(), &failure);
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<ExitCode, Failure> {
    let format = options.format();
    let cluster = Cluster::connect(&options).await?;
    let wide = options.output == Some(Output::Wide);
    let mut code = ExitCode::SUCCESS;
    let report = match options.command {
        Command::Nodes => nodes::list(&cluster, wide).await?,
        Command::Pools => pools::list(&cluster, wide).await?,
        Command::Capacity => pools::capacity(&cluster).await?,
        Command::Volumes { watch: false } => volumes::list(&cluster, wide).await?,
        Command::Volumes { watch: true } => {
            volumes::watch(&cluster, format, wide).await?;
            return Ok(code);
        }
        Command::Orphans => lost::orphans(&cluster).await?,
        Command::Doctor => {
            let (report, healthy) = doctor::run(&cluster).await?;
            if !healthy {
                code = ExitCode::FAILURE;
            }
            report
        }
        Command::ReleaseNode { node, yes } => release::run(&cluster, &node, yes).await?,
    };
    report.print(format)?;
    Ok(code)
}
