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
use bulkhead_privhelper::start::refusal::{Refusal, Why};
use bulkhead_privhelper::start::{
    directory, host, jail, judge, landlock, nodes, outside, patience, privileges, proof, ready, recover, split, welcome,
};
use nix::sys::signal::{SigSet, Signal};

fn main() -> ExitCode {
    let result = match config::parse(std::env::args().skip(1)) {
        Ok(Command::Print(text)) => {
            print!("{text}");
            Ok(())
        }
        Ok(Command::Serve(config)) => serve(&config),
        Err(complaint) => Err(Why::Configuration.because(complaint)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            log::last_words(&refusal.to_string());
            ExitCode::FAILURE
        }
    }
}

fn serve(config: &Config) -> Result<(), Refusal> {
    // Afterwards, no filter allows it.
    std::sync::LazyLock::force(&log::IS_JOURNAL);
    server::allow_descriptors(config.pools.len())?;
    patience::judged(config.on_violation, |unprivileged| judge::host::judge(unprivileged, config))?;
    let (listener, service_manager) = outside::take(config)?;
    let mut host = host::inspect(config, directory::open_or_make, true)?;
    host::mark_and_wait(&mut host, config.on_violation);
    let mut jail = jail::enter(config, &host)?;
    let pools = jail::claim_pools(&mut jail, &mut host)?;
    proof::prove(&host, &jail)?;
    let devices = nodes::look(&host, &jail.nodes.0, config.on_violation)?;
    // Neither does another process of this helper die of it, before this one has ended.
    let asked = SigSet::from(Signal::SIGTERM);
    asked.thread_block().map_err(|error| format!("cannot hold back SIGTERM: {error}"))?;
    let split = split::split(config, jail, pools)?;
    let (listener, _lock) = listener.listen(config)?;
    let unprivileged = privileges::drop_all()?;
    landlock::confine(Process::Keeper, &split.directories())?;
    log::begin()?;
    let (state, missing, mounts) = recover::recover(&unprivileged, config, host, split, devices)?;
    let welcome = welcome::welcome(config, &state)?;
    let service = Arc::new(server::service(config.allowed_uid, welcome, state, listener)?);
    recover::take_over(&service)?;
    let gate = server::start(&service)?;
    ready::end_when_asked(&service, asked)?;
    filter::install(Process::Keeper, config.on_violation).map(|()| gate.wait())?;
    service_manager.ready(config);
    ready::end_when_changed(&service, mounts, missing);
    Ok(())
}
