//! Serves gRPC on a Unix socket until shutdown.

mod budget;
mod calls;
mod clients;
mod heads;

use std::io;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::{oneshot, watch};
use tonic::service::Routes;
use tonic::transport::Server;
use tower::layer::layer_fn;

use self::heads::Understood;

/// The largest message that is accepted, in bytes. The largest part of a call in CSI is a map of 4 KiB; Kubernetes
/// allows 256 KiB for the parameters of a class.
pub const LONGEST_MESSAGE: usize = 512 << 10;

/// How many calls a client may have in progress on a connection. Further ones wait at the client.
const CALLS: u32 = 32;

/// How much a client may send on a connection before it is read, in bytes, and how much of that for one call.
const AHEAD: u32 = 256 << 10;
const AHEAD_IN_A_CALL: u32 = 64 << 10;

/// The largest head of a call, in bytes.
const LONGEST_HEAD: u32 = 16 << 10;

/// How often a client is asked whether it is still there, and how long it may take to answer.
const KEEPALIVE: Duration = Duration::from_secs(60);
const KEEPALIVE_ANSWERS: Duration = Duration::from_secs(20);

/// Signals shutdown to everything that serves.
#[derive(Clone)]
pub struct Shutdown(watch::Sender<bool>);

/// Why serving failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket cannot be served.
    #[error("cannot use the listening socket: {0}")]
    Listener(#[from] io::Error),
    /// Nobody can connect to the socket any more.
    #[error(
        "the listening socket is of no use any more: {0}; the privileged helper shuts it down when its name has been removed, and when another frontend asks for it: run one frontend on a node"
    )]
    Dead(io::Error),
    /// The server failed.
    #[error(transparent)]
    Server(#[from] tonic::transport::Error),
}

impl Default for Shutdown {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Shutdown {
    /// Begins the shutdown.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Waits for the shutdown to begin.
    pub async fn begun(&self) {
        // It cannot fail: the sender is held here.
        let _ = self.0.subscribe().wait_for(|begun| *begun).await;
    }
}

/// Serves `routes` to every client that connects to `listener`, which must be non-blocking. After the shutdown has
/// begun, accepts no new calls and waits for those in progress.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(listener: UnixListener, routes: Routes, shutdown: &Shutdown) -> Result<(), ServeError> {
    let (dead, death) = oneshot::channel();
    let clients = clients::accept(tokio::net::UnixListener::from_std(listener)?, dead);
    let clients = clients.map(|client| client.map(Understood::new));
    let server = Server::builder()
        .layer(layer_fn(calls::Counted))
        .max_concurrent_streams(CALLS)
        .initial_connection_window_size(AHEAD)
        .initial_stream_window_size(AHEAD_IN_A_CALL)
        .http2_max_header_list_size(LONGEST_HEAD)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_ANSWERS))
        .add_routes(routes);
    tokio::select! {
        served = server.serve_with_incoming_shutdown(clients, shutdown.begun()) => Ok(served?),
        Ok(error) = death => Err(ServeError::Dead(error)),
    }
}
