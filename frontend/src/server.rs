//! Serves gRPC on a Unix socket until shutdown.

use std::io;
use std::os::unix::net::UnixListener;

use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;

/// Signals shutdown to everything that serves.
#[derive(Clone)]
pub struct Shutdown(watch::Sender<bool>);

/// Why serving failed.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket cannot be served.
    #[error("cannot use the listening socket: {0}")]
    Listener(#[from] io::Error),
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
    let connections = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener)?);
    let server = Server::builder().add_routes(routes);
    Ok(server.serve_with_incoming_shutdown(connections, shutdown.begun()).await?)
}
