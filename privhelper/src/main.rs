//! The privileged half of Bulkhead. This file is its life, one call a step, in order; `SECURITY.md` tells why.

mod audit;
mod capabilities;
mod dispatch;
mod emptier;
mod log;
mod ops;
mod server;
mod start;
mod state;
// The only place where `unsafe` is allowed.
#[allow(unsafe_code)]
mod sys;

use std::process::ExitCode;
use std::sync::Arc;

use start::config::{self, Command, Config};
use start::{check, host, jail, marker, outside, privileges, recover, split, welcome};
use sys::seccomp::{self, Process};

fn main() -> ExitCode {
    let command = config::parse(std::env::args().skip(1));
    let result = match command {
        Ok(Command::Print(text)) => {
            print!("{text}");
            Ok(())
        }
        Ok(Command::InitPools(pools)) => marker::init(&pools),
        Ok(Command::Check(config)) => return check::check(&config),
        Ok(Command::Serve(config)) => serve(&config),
        Err(complaint) => Err(complaint),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("<3>bulkhead-privhelper: {complaint}");
            ExitCode::FAILURE
        }
    }
}

fn serve(config: &Config) -> Result<(), String> {
    let mut outside = outside::take(config)?;
    let host = host::inspect(config, true)?;
    let jail = jail::enter(config, &host)?;
    jail::prove(&host, &jail)?;
    let emptier = split::split(config, &host, &jail)?;
    let state = recover::recover(config, host, jail, emptier)?;
    let welcome = welcome::welcome(config, &state)?;
    let service = Arc::new(server::Service { state, welcome, allowed_uid: config.allowed_uid });
    privileges::drop_all()?;
    let threads = server::start(&service)?;
    seccomp::install(Process::Server, config.on_violation)
        .map_err(|error| format!("cannot install the seccomp filter: {error}"))?;
    outside.ready();
    server::serve(&service, &threads, &outside.listener).map_err(|errno| format!("cannot accept connections: {errno}"))
}
