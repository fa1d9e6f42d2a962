//! The API server's way to the node. The pods' network is known in the machine only, so the API server asks a proxy for
//! each connection, as it does where a control plane is not in its nodes' network.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::ADDRESS;

/// The longest request that is read.
const LONGEST: u64 = 4096;

/// The proxy. It serves until this program ends.
#[derive(Debug)]
pub struct Gateway {
    directory: TempDir,
}

impl Gateway {
    /// Opens it. `relay` is the port here that leads to the machine's own way to its pods.
    pub fn open(relay: u16) -> Result<Self> {
        let gateway = Self { directory: tempfile::Builder::new().prefix("bulkhead-gateway-").tempdir()? };
        let socket = gateway.socket();
        let listener = UnixListener::bind(&socket).with_context(|| format!("listen on {}", socket.display()))?;
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || serve(client, relay));
            }
        });
        Ok(gateway)
    }

    /// The socket on which it listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }
}

/// Serves a connection. Whoever asked notices that it ends, and there is nobody else to tell.
fn serve(client: UnixStream, relay: u16) {
    let _ = connect(client, relay);
}

fn connect(mut client: UnixStream, relay: u16) -> io::Result<()> {
    let wanted = requested(&client)?;
    let server = match wanted.as_deref().and_then(|target| target.rsplit_once(':')) {
        Some((address, port)) => reach(address, port, relay),
        None => Err(io::ErrorKind::InvalidInput.into()),
    };
    let Ok(server) = server else {
        return client.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n");
    };
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let copied = io::copy(&mut from_client, &mut to_server);
        to_server.shutdown(Shutdown::Write).and(copied.map(drop))
    });
    let (mut server, mut client) = (server, client);
    let copied = io::copy(&mut server, &mut client);
    client.shutdown(Shutdown::Both).and(copied.map(drop))
}

/// The `ADDRESS:PORT` that a client asks to be connected to. It says no more before it is answered.
fn requested(client: &UnixStream) -> io::Result<Option<String>> {
    let mut lines = BufReader::new(client.take(LONGEST)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let mut words = first.split(' ');
    Ok(words.next().filter(|method| *method == "CONNECT").and_then(|_| words.next()).map(str::to_owned))
}

/// The kubelet's port is forwarded from here, and is the same one; everything else is known in the machine.
fn reach(address: &str, port: &str, relay: u16) -> io::Result<TcpStream> {
    if address == ADDRESS {
        let port = port.parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        return TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    }
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, relay))?;
    writeln!(server, "{address} {port}")?;
    Ok(server)
}
