//! The life of the privileged half of Bulkhead, one call per step, in order.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects, clippy::disallowed_macros, clippy::expect_used, clippy::indexing_slicing,
        clippy::panic, clippy::unreachable, clippy::unwrap_used
    )
)]

use std::process::ExitCode;
use std::sync::Arc;

use bulkhead_privhelper::log;
use bulkhead_privhelper::server;
use bulkhead_privhelper::start::config::{self, Command, Config};
use bulkhead_privhelper::start::filter::{self, Process};
use bulkhead_privhelper::start::{directory, host, jail, outside, privileges, proof, recover, split, welcome};

fn main() -> ExitCode {
    let result = match config::parse(std::env::args().skip(1)) {
        Ok(Command::Print(text)) => {
            print!("{text}");
            Ok(())
        }
        Ok(Command::Serve(config)) => serve(&config),
        Err(complaint) => Err(complaint),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            log::last_words(&complaint);
            ExitCode::FAILURE
        }
    }
}

fn serve(config: &Config) -> Result<(), String> {
    let (listener, service_manager) = outside::take(config)?;
    let mut host = host::inspect(config, directory::open_or_make)?;
    host::mark_and_wait(config, &mut host);
    let mut jail = jail::enter(&host)?;
    jail::claim_pools(config, &mut host, &mut jail)?;
    proof::prove(&host, &jail)?;
    let emptier = split::split(config, &host)?;
    let state = recover::recover(config, host, jail, emptier)?;
    let welcome = welcome::welcome(config, &state)?;
    let service = Arc::new(server::Service { state, welcome, allowed_uid: config.allowed_uid });
    let listener = listener.listen(config)?;
    privileges::drop_all_but(privileges::SERVER)?;
    let threads = server::start(&service)?;
    filter::install(Process::Server, config.on_violation)?;
    service_manager.ready();
    server::serve(&service, &threads, &listener).map_err(|errno| format!("cannot accept connections: {errno}"))
}
