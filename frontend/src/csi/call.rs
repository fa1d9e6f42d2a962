//! Runs a call to completion and writes one log line about it.

use std::future::Future;
use std::time::Instant;

use bulkhead_model::volumes::Fault;
use tonic::{Response, Status};
use tracing::{debug, info, warn};

use super::codes::{Operation, code, code_name, status};
use crate::call_id::{current, numbered};
use crate::metrics::METRICS;

/// The maximum length of a client-supplied id in the log. Volume ids are shorter.
const LONGEST_LOGGED: usize = 130;

/// The parts of a call that are logged: never its secrets, contexts or paths.
pub(super) struct Call {
    rpc: &'static str,
    operation: Operation,
    volume: String,
}

impl Call {
    /// A call that does not concern a single volume.
    pub(super) fn new(rpc: &'static str, operation: Operation) -> Self {
        Self { rpc, operation, volume: String::new() }
    }

    /// A call that concerns `volume`, which may be any text that a client sends.
    pub(super) fn on(rpc: &'static str, operation: Operation, volume: &str) -> Self {
        let shown = &volume[..volume.floor_char_boundary(LONGEST_LOGGED)];
        Self { rpc, operation, volume: shown.to_owned() }
    }

    /// Runs `work`, which changes something, to completion even if the client disconnects.
    pub(super) async fn complete<T: Send + 'static>(
        self,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let rpc = self.rpc;
        let task = tokio::spawn(numbered(async move {
            let begun = Instant::now();
            let outcome = work.await;
            self.report(&outcome, begun, true);
            outcome.map(Response::new).map_err(|fault| status(self.operation, &fault))
        }));
        task.await
            .unwrap_or_else(|error| Err(Status::internal(format!("{rpc} ended without a result: {error}; try again"))))
    }

    /// Runs `work`, which only reads, for as long as the client waits.
    pub(super) async fn answer<T>(self, work: impl Future<Output = Result<T, Fault>>) -> Result<Response<T>, Status> {
        numbered(async move {
            let begun = Instant::now();
            let outcome = work.await;
            self.report(&outcome, begun, false);
            outcome.map(Response::new).map_err(|fault| status(self.operation, &fault))
        })
        .await
    }

    fn report<T>(&self, outcome: &Result<T, Fault>, begun: Instant, changes: bool) {
        let (rpc, volume) = (self.rpc, self.volume.as_str());
        let name = outcome.as_ref().map_or_else(|fault| code_name(code(self.operation, fault.kind)), |_| "OK");
        METRICS.csi_calls.with([rpc, name]).observe(begun.elapsed().as_secs_f64());
        let microseconds = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        let call = current();
        match outcome {
            Ok(_) if changes => info!(rpc, volume, %call, code = name, microseconds),
            Ok(_) => debug!(rpc, volume, %call, code = name, microseconds),
            Err(fault) => warn!(rpc, volume, %call, code = name, microseconds, "{fault}"),
        }
    }
}
