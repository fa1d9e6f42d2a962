//! The clients that are connected, no more and no faster than the process can bear: whoever reaches the port may connect,
//! and the only thread has other work as well.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::certificate::Certificate;
use crate::crowd::{self, Crowd, Disconnect};

/// How many clients may be connected at a time.
const CLIENTS: usize = 64;

/// How long a client may be idle before one more takes its place.
const GRACE: Duration = Duration::from_secs(2);

/// How long it takes at least from one client to the next. Proving who one is takes up to some milliseconds of the only
/// thread.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a client may take to agree on keys.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to wait after an error, which passes.
const REST: Duration = Duration::from_millis(200);

/// A connected client.
pub struct Client {
    stream: TlsStream<TcpStream>,
    place: Place,
}

/// A client's place among all, as its calls know it.
#[derive(Clone)]
pub struct Place(Arc<crowd::Client<OwnedFd>>);

/// The clients that connect to `listener`, each once keys are agreed on.
pub fn accept(listener: TcpListener, certificate: Arc<Certificate>) -> impl Stream<Item = io::Result<Client>> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            never = take(&listener, &certificate, &sender) => match never {},
        }
    });
    ReceiverStream::new(receiver)
}

async fn take(
    listener: &TcpListener,
    certificate: &Certificate,
    sender: &mpsc::Sender<io::Result<Client>>,
) -> std::convert::Infallible {
    let mut connected = Crowd::new(CLIENTS, GRACE);
    loop {
        sleep(PAUSE).await;
        // The client may be gone already, or no descriptors are left.
        let accepted = listener.accept().await.and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            let handle = stream.as_fd().try_clone_to_owned()?;
            Ok((stream, handle))
        });
        let Ok((stream, handle)) = accepted else {
            sleep(REST).await;
            continue;
        };
        let place = Place(connected.admit(handle).await);
        if let Some(acceptor) = certificate.acceptor() {
            tokio::spawn(agree(stream, place, acceptor, sender.clone()));
        }
    }
}

/// A client that does not speak TLS, or leaves early, is not worth reporting.
async fn agree(stream: TcpStream, place: Place, acceptor: TlsAcceptor, sender: mpsc::Sender<io::Result<Client>>) {
    if let Ok(Ok(stream)) = timeout(PATIENCE, acceptor.accept(stream)).await {
        // Nobody takes it any more if the process is ending.
        let _ = sender.send(Ok(Client { stream, place })).await;
    }
}

impl Disconnect for OwnedFd {
    fn disconnect(&self) {
        // This fails if the client is gone, which is as good.
        let _ = shutdown(self, Shutdown::Both);
    }
}

impl Place {
    /// A call of this client begins.
    pub fn call(&self) -> crowd::Call<OwnedFd> {
        self.0.call()
    }
}

impl Connected for Client {
    type ConnectInfo = Place;

    fn connect_info(&self) -> Place {
        self.place.clone()
    }
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
