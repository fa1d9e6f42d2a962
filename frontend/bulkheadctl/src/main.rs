//! `bulkheadctl`: a node's pools and volumes, for people and scripts.
#![deny(clippy::print_stderr, clippy::print_stdout, reason = "what is printed passes through `report`")]

mod arrays;
mod client;
mod copy;
mod delete;
mod doctor;
mod export;
mod failure;
mod inspect;
mod locate;
mod options;
mod pages;
mod pool;
mod snapshot;
mod targets;
mod volume;

use std::process::ExitCode;

use bulkhead_model::quantity::Quantity;
use clap::{CommandFactory, Parser};
use serde_json::json;

use bulkhead_console::manual;
use bulkhead_console::report::{self, Report, Table};
use bulkhead_frontend::proto::csi::{GetCapacityRequest, NodeGetInfoRequest, ProbeRequest};

use client::Client;
use failure::Failure;
use locate::Server;
use options::{Command, NodeCommand, Options, PoolCommand, SECTIONS};

/// What it is called.
const NAME: &str = "bulkheadctl";

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
            report::fail(NAME, format, failure.code(), &failure);
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> Result<ExitCode, Failure> {
    let format = options.format();
    let server = Server::find(options.endpoint, options.helper_socket);
    let connect = || Client::connect(&server);
    let mut code = ExitCode::SUCCESS;
    let report = match options.command {
        Command::Pool(PoolCommand::List) => pool::list(connect().await?).await?,
        Command::Volume(command) => match volume::run(connect().await?, command).await? {
            Some(report) => report,
            None => return Ok(code),
        },
        Command::Snapshot(command) => snapshot::run(connect().await?, command).await?,
        Command::Node(NodeCommand::Info) => node_info(connect().await?).await?,
        Command::Capacity { pool } => capacity(connect().await?, pool).await?,
        Command::Doctor => {
            let (report, healthy) = doctor::run(&server).await;
            if !healthy {
                code = ExitCode::FAILURE;
            }
            report
        }
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Options::command(), NAME, &mut script);
            report::print(&String::from_utf8_lossy(&script))?;
            return Ok(code);
        }
        Command::Man { directory } => {
            manual::write(Options::command(), SECTIONS, &directory)?;
            return Ok(code);
        }
    };
    report.print(format)?;
    Ok(code)
}

async fn node_info(mut client: Client) -> Result<Report, Failure> {
    let ready = client.identity.probe(ProbeRequest {}).await?.into_inner().ready.unwrap_or(true);
    let node = client.node.node_get_info(NodeGetInfoRequest {}).await?.into_inner();
    let topology = node.accessible_topology.unwrap_or_default().segments;
    let places: Vec<_> = topology.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let ready_word = if ready { "yes" } else { "no: the privileged helper cannot be reached" };
    let table = Table::facts([
        ("node", node.node_id.clone()),
        ("topology", places.join(", ")),
        ("ready", ready_word.to_owned()),
    ]);
    Ok(Report::new(json!({ "node": node.node_id, "topology": topology, "ready": ready }), table))
}

async fn capacity(mut client: Client, pool: Option<String>) -> Result<Report, Failure> {
    let parameters = pool.into_iter().map(|pool| ("pool".to_owned(), pool)).collect();
    let request = GetCapacityRequest { parameters, ..GetCapacityRequest::default() };
    let room = client.controller.get_capacity(request).await?.into_inner();
    let largest = room.maximum_volume_size.unwrap_or(room.available_capacity);
    let smallest = room.minimum_volume_size.unwrap_or(0);
    let table = Table::facts([
        ("available", Quantity(room.available_capacity).to_string()),
        ("largest volume", Quantity(largest).to_string()),
        ("smallest volume", Quantity(smallest).to_string()),
    ]);
    let json = json!({
        "availableBytes": room.available_capacity,
        "largestVolumeBytes": largest,
        "smallestVolumeBytes": smallest,
    });
    Ok(Report::new(json, table))
}
