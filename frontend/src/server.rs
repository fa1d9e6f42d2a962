//! Serving gRPC on a unix socket until the process is to end.

use std::io;
use std::os::unix::net::UnixListener;

use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::Server;

/// Tells everything that serves to come to an end.
#[derive(Clone)]
pub struct Shutdown(watch::Sender<bool>);

/// Why serving has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket is none that can be served.
    #[error("the listening socket cannot be used: {0}")]
    Listener(#[from] io::Error),
    /// The server gave up.
    #[error(transparent)]
    Server(#[from] tonic::transport::Error),
}

impl Default for Shutdown {
    fn default() -> Self {
        Self(watch::Sender::new(false))
    }
}

impl Shutdown {
    /// The end has come.
    pub fn begin(&self) {
        self.0.send_replace(true);
    }

    /// Waits for the end to come.
    pub async fn begun(&self) {
        // It cannot fail: the sender is held here.
        let _ = self.0.subscribe().wait_for(|begun| *begun).await;
    }
}

/// Serves `routes` to whoever connects to `listener`, a non-blocking one. At the end no new call is accepted, and
/// those under way are waited for.
///
/// # Errors
/// See [`ServeError`].
pub async fn serve(listener: UnixListener, routes: Routes, shutdown: &Shutdown) -> Result<(), ServeError> {
    let connections = UnixListenerStream::new(tokio::net::UnixListener::from_std(listener)?);
    let server = Server::builder().add_routes(routes);
    Ok(server.serve_with_incoming_shutdown(connections, shutdown.begun()).await?)
}
