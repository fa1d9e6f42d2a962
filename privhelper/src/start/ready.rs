//! The last step of the helper's life: it serves until it is asked to end, or should be started anew.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nix::sys::signal::SigSet;

use super::config::Config;
use crate::bookkeeping::{Missing, watch};
use crate::log;
use crate::server::Service;
use crate::sys::mountinfo::MountTable;
use crate::sys::packet;
use crate::threads;

/// Where the service manager waits to be told that the helper is ready, if it does.
#[derive(Debug)]
pub struct ServiceManager(pub Option<OwnedFd>);

impl ServiceManager {
    /// Tells systemd that requests are served.
    pub fn ready(self, config: &Config) {
        if let Some(manager) = self.0
            && let Err(error) = packet::send(&manager, b"READY=1\nSTATUS=Serving requests", None)
        {
            log::warning!("cannot notify systemd that the helper is ready error={error}");
        }
        let pools: Vec<_> = config.pools.iter().map(|pool| pool.name.as_str()).collect();
        log::info!("serving requests release={} pools={pools:?}", env!("CARGO_PKG_VERSION"));
    }
}

/// Has the process end when the service manager asks for it. What is in progress by then is waited for only for the sake of
/// its lines in the log: the next start completes it or undoes it.
///
/// # Errors
/// A sentence when there is no thread for it.
pub fn end_when_asked(service: &Arc<Service>, asked: SigSet) -> Result<(), String> {
    let service = Arc::clone(service);
    threads::spawn(move || {
        let _ = asked.wait();
        if !service.end_in_order("the helper ends: it was asked to") {
            log::last_words("the helper ends, though requests are in progress: it was asked to");
        }
        std::process::exit(0);
    })
}

/// Returns when the helper has ended, to be started anew.
pub fn end_when_changed(service: &Service, mut mounts: MountTable, mut missing: Missing) {
    loop {
        let why = watch(&service.state, &mut mounts, &mut missing);
        if service.end_in_order(&format!("the helper ends, to be started anew: {why}")) {
            return;
        }
    }
}
