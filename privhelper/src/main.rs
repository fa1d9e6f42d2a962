//! The privileged half of Bulkhead. This file is its life, one call a step, in order; `SECURITY.md` tells why.

mod audit;
mod config;
mod dispatch;
mod emptier;
mod host;
mod jail;
mod marker;
mod mountinfo;
mod ops;
mod recover;
mod server;
mod startup;
mod state;
// The only place where `unsafe` is allowed.
#[allow(unsafe_code)]
mod sys;

use std::process::ExitCode;
use std::sync::Arc;

use caps::Capability;

use config::{Command, Config};
use sys::seccomp::{self, Process};

/// What the serving process may still do: mount, set quotas and trusted attributes; make device nodes.
const KEPT: [Capability; 2] = [Capability::CAP_SYS_ADMIN, Capability::CAP_MKNOD];

fn main() -> ExitCode {
    audit::install();
    let command = config::parse(std::env::args().skip(1));
    let result = match command {
        Ok(Command::Print(text)) => {
            print!("{text}");
            Ok(())
        }
        Ok(Command::InitPools(pools)) => marker::init(&pools),
        Ok(Command::Check(config)) => return startup::check(&config),
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
    let mut outside = startup::take_outside(config)?;
    let host = host::inspect(config, true)?;
    let jail = jail::enter(config, &host)?;
    jail::prove(&host, &jail)?;
    let emptier = startup::split(config, &host, &jail)?;
    let state = recover::recover(config, host, jail, emptier)?;
    let welcome = startup::welcome(config, &state)?;
    let service = Arc::new(server::Service { state, welcome, allowed_uid: config.allowed_uid });
    startup::drop_privileges()?;
    let threads = server::start(&service)?;
    seccomp::install(Process::Server, config.on_violation)
        .map_err(|error| format!("cannot install the seccomp filter: {error}"))?;
    outside.ready();
    server::serve(&service, &threads, &outside.listener).map_err(|errno| format!("cannot accept connections: {errno}"))
}
