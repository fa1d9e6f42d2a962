//! `kubectl bulkhead`: the volumes of all nodes, with the user's own rights. kubectl finds this program by its name.
#![deny(clippy::print_stderr, clippy::print_stdout, reason = "what is printed passes through `report`")]

mod adopt;
mod agents;
mod bundle;
mod classes;
mod cluster;
mod completion;
mod cordon;
mod decoys;
mod doctor;
mod impact;
mod lost;
mod moved;
mod namespaces;
mod nodes;
mod options;
mod pods;
mod pools;
mod proxy;
mod release;
mod rollout;
mod snapshots;
mod split;
mod state;
mod ui;
mod uncontrolled;
mod unheld;
mod usage;
mod volumes;
mod watch;

use std::process::ExitCode;

use bulkhead_console::manual;
use bulkhead_console::report::{self, Format};
use clap::{CommandFactory, Parser};

use cluster::{Cluster, Failure};
use options::{Command, Options, Output, SECTIONS};

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
    match &options.command {
        Command::Completion => report::print(completion::SCRIPT)?,
        Command::Complete { words } => report::print(&completion::answer(words))?,
        Command::Man { directory } => manual::write(Options::command(), SECTIONS, directory)?,
        Command::Ui { port } => ui::run(&options, *port).await?,
        _ => return ask(options, format).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns what takes an API server to answer.
async fn ask(options: Options, format: Format) -> Result<ExitCode, Failure> {
    let cluster = Cluster::connect(&options).await?;
    let wide = options.output == Some(Output::Wide);
    let mut code = ExitCode::SUCCESS;
    let report = match options.command {
        Command::Nodes => nodes::list(&cluster, wide).await?,
        Command::Pools => pools::list(&cluster, wide).await?,
        Command::Capacity { by_namespace: false } => pools::capacity(&cluster).await?,
        Command::Capacity { by_namespace: true } => namespaces::list(&cluster).await?,
        Command::Volumes { filter, watch: false } => {
            volumes::list(&cluster, &filter, wide || format != Format::Text).await?
        }
        Command::Volumes { filter, watch: true } => {
            watch::run(&cluster, &filter, format, wide).await?;
            return Ok(code);
        }
        Command::Snapshots => snapshots::list(&cluster).await?,
        Command::Impact { node } => impact::of(&cluster, &node).await?,
        Command::Cordon { pool } => cordon::set(&cluster, &pool, true).await?,
        Command::Uncordon { pool } => cordon::set(&cluster, &pool, false).await?,
        Command::Orphans => lost::orphans(&cluster).await?,
        Command::Doctor => {
            let (report, healthy) = doctor::run(&cluster).await?;
            if !healthy {
                code = ExitCode::FAILURE;
            }
            report
        }
        Command::Bundle(options) => {
            // What could not be read is an entry that says so.
            bundle::run(&cluster, &options).await?.print(format)?;
            return Ok(code);
        }
        Command::Adopt(options) => {
            let (report, is_complete) = adopt::run(&cluster, &options).await?;
            if !is_complete {
                code = ExitCode::FAILURE;
            }
            report
        }
        Command::ReleaseNode { node, yes, abandon_moved } => release::run(&cluster, &node, yes, abandon_moved).await?,
        // They are done already.
        Command::Ui { .. } | Command::Completion | Command::Complete { .. } | Command::Man { .. } => return Ok(code),
    };
    report.print(format)?;
    Ok(if cluster.unended.borrow().is_empty() { code } else { ExitCode::FAILURE })
}
