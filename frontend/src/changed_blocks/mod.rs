//! Kubernetes' service for backup programs: which ranges of a snapshot hold data, or have changed since an earlier one.
//!
//! Each node has its own snapshots, and a Service leads a client to any agent: one that does not have the snapshot passes
//! the call on to the one that has it. Whoever reaches the port may connect, so that everything here has a limit, and the
//! API server is asked about each caller before anything else is done.
//!
//! From top to bottom, each importing only from those below it:
//!
//! - `service`: the calls
//! - `asked`: the two kinds of calls, which differ only in their messages
//! - `passing`: a call for another node's agent
//! - `places`: how many calls there may be, and for how long
//! - `clients`: the clients that are connected
//! - `certificate`: what the service shows them
//! - `dates`: whether that is valid

mod asked;
mod certificate;
mod clients;
mod dates;
mod passing;
mod places;
mod service;

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tonic::transport::Server;
use tracing::{error, info};

use self::certificate::Certificate;
use self::service::Service;
use crate::kubernetes::View;
use crate::listening::{ListenAddress, ListenError};
use crate::proto::snapshotmetadata::snapshot_metadata_server::SnapshotMetadataServer;
use crate::readiness::{Part, Readiness};
use crate::server::Shutdown;

/// The longest message that is accepted, in bytes. The longest part of one is a token of a few kilobytes.
const LONGEST_MESSAGE: usize = 32 << 10;

/// How many calls a client may have in progress on a connection.
const CALLS: u32 = 16;

/// How much a client may send on a connection before it is read, in bytes.
const AHEAD: u32 = 64 << 10;

/// The largest head of a call, in bytes.
const LONGEST_HEAD: u32 = 16 << 10;

/// How often a client is asked whether it is still there, and how long it may take to answer.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_ANSWERS: Duration = Duration::from_secs(20);

/// What is opened before entering the sandbox, in which this process cannot listen.
#[derive(Debug)]
pub struct ChangedBlocks {
    listener: Result<TcpListener, ListenError>,
    directory: PathBuf,
}

impl ChangedBlocks {
    /// Starts listening, if that is possible: volumes need none of this. The certificate and its key are in `directory`, and
    /// read when they are needed.
    pub fn open(at: ListenAddress, directory: PathBuf) -> Self {
        Self { listener: at.listen("changed blocks"), directory }
    }

    /// Serves until `shutdown` begins, and records in `readiness` whether it can. Callers and snapshots are those that the
    /// agent of `view` knows.
    pub async fn serve(self, view: View, readiness: Readiness, shutdown: Shutdown) {
        let cannot = |why: String| {
            error!("changed blocks are not served: {why}");
            readiness.not_ready(Part::ChangedBlocks, format!("changed blocks are not served: {why}"));
        };
        let listener = match self.listener {
            Ok(listener) => tokio::net::TcpListener::from_std(listener).map_err(|error| error.to_string()),
            Err(error) => Err(format!("{error} Once it is free, restart the agent, which listens only when it starts")),
        };
        let listener = match listener {
            Ok(listener) => listener,
            Err(why) => return cannot(why),
        };
        if let Ok(address) = listener.local_addr() {
            info!(%address, "serving changed blocks");
        }
        let certificate = Arc::new(Certificate::in_directory(self.directory, readiness.clone()));
        let service = SnapshotMetadataServer::new(Service::new(view)).max_decoding_message_size(LONGEST_MESSAGE);
        let server = Server::builder()
            .max_concurrent_streams(CALLS)
            .initial_connection_window_size(AHEAD)
            .initial_stream_window_size(AHEAD)
            .http2_max_header_list_size(LONGEST_HEAD)
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE_ANSWERS))
            .add_service(service);
        let clients = clients::accept(listener, Arc::clone(&certificate));
        let served = tokio::select! {
            served = server.serve_with_incoming_shutdown(clients, shutdown.begun()) => served,
            never = certificate.watch() => match never {},
        };
        if let Err(error) = served {
            cannot(format!("{error}; restart the agent"));
        }
    }
}
