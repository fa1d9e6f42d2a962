//! Clients that share no code with ours: of gRPC's own library, of which those of C++, C#, PHP, Python and Ruby are made, and
//! of that for Java.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::commands::Printed;
use bulkhead_tests::rig::Rig;

cases! {
    a_client_of_grpcs_own_library_is_served: Host,
    a_client_of_grpcs_library_for_java_is_served: Host + Long,
}

/// Makes calls of each kind, with the host's name that the library makes of the socket's path, and with others.
const CLIENT: &str = "
import grpc, sys
from urllib.parse import quote
socket = sys.argv[1]
def refused(call, code):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, error
    else:
        raise AssertionError('a call without arguments succeeds')
names = [None, 'localhost', socket, quote(socket, safe='')]
for name in names:
    options = [('grpc.default_authority', name)] if name else []
    with grpc.insecure_channel('unix:' + socket, options) as channel:
        for _ in range(3):
            info = channel.unary_unary('/csi.v1.Identity/GetPluginInfo')(b'', timeout=60)
            assert b'bulkhead.csi.local' in info, info
        delete = channel.unary_unary('/csi.v1.Controller/DeleteVolume')
        refused(lambda: delete(b'', timeout=60), grpc.StatusCode.INVALID_ARGUMENT)
        blocks = channel.unary_stream('/csi.v1.SnapshotMetadata/GetMetadataAllocated')
        refused(lambda: list(blocks(b'', timeout=60)), grpc.StatusCode.INVALID_ARGUMENT)
print(grpc.__version__, 'is served under', len(names), 'names')
";

const JAVA_CLIENT: &str = include_str!("foreign/client.java");

fn a_client_of_grpcs_own_library_is_served(rig: &mut Rig) -> Result<()> {
    let socket = rig.kubelet.csi_socket();
    // Debian's own package is of Debian's own interpreter.
    let mut client = Command::new("/usr/bin/python3");
    let told = Printed::by(client.args(["-c", CLIENT]).arg(&socket))?.succeeded()?;
    ensure!(told.trim_end().ends_with("is served under 4 names"), "{told}");
    println!("gRPC {told}");
    Ok(())
}

fn a_client_of_grpcs_library_for_java_is_served(rig: &mut Rig) -> Result<()> {
    let source = rig.work().join("client.java");
    fs::write(&source, JAVA_CLIENT)?;
    let socket = rig.kubelet.csi_socket();
    let port = relay(socket.clone())?;
    // Debian's packages are of Debian's own interpreter.
    let mut client = Command::new("/usr/bin/java");
    client.args(["-cp", "/usr/share/java/*"]).arg(&source).arg(&socket).arg(port.to_string());
    let told = Printed::by(&mut client)?.succeeded()?;
    ensure!(told == format!("served as {}\nserved as localhost\n", socket.display()), "{told}");
    Ok(())
}

/// A port of this host whose connections lead to the socket, as long as this process lives.
fn relay(socket: PathBuf) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || -> Result<()> {
        loop {
            let ((outside, _), inside) = (listener.accept()?, UnixStream::connect(&socket)?);
            let (mut from, mut to) = (outside.try_clone()?, inside.try_clone()?);
            thread::spawn(move || io::copy(&mut from, &mut to));
            let (mut from, mut to) = (inside, outside);
            thread::spawn(move || io::copy(&mut from, &mut to));
        }
    });
    Ok(port)
}
