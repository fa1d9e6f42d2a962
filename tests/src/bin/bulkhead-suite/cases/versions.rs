//! Old and new versions of the protocol talking to each other.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_protocol::{ErrorKind, HIGHEST_VERSION, Hello, Request, Socket, Text, Welcome, decode, encode};
use bulkhead_tests::cases;
use bulkhead_tests::daemon::{Daemon, FRONTEND_UID};
use bulkhead_tests::expect::denied;
use bulkhead_tests::helper::{HelperClient, bind, create, delete, directory_spec, discard, unbind, volume};
use bulkhead_tests::rig::Rig;
use bulkhead_tests::run_options::program;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

cases! {
    a_newer_client_is_answered_in_the_helpers_version,
    the_oldest_client_is_answered_in_its_version,
    a_client_without_a_version_is_told_so,
    an_unknown_request_closes_the_connection_only,
    a_request_newer_than_the_agreed_version_is_refused,
    the_frontend_says_hello_with_its_highest_version: Bare,
}

fn a_newer_client_is_answered_in_the_helpers_version(rig: &mut Rig) -> Result<()> {
    for version in [HIGHEST_VERSION, HIGHEST_VERSION + 1, u16::MAX] {
        let client = HelperClient::connect(&rig.helper_socket())?;
        let welcome = client.hello(version)?;
        ensure!(welcome.version == HIGHEST_VERSION, "version {}", welcome.version);
        client.ask(&Request::List { after: None, limit: 1 })?;
    }
    Ok(())
}

fn the_oldest_client_is_answered_in_its_version(rig: &mut Rig) -> Result<()> {
    let client = HelperClient::connect(&rig.helper_socket())?;
    let welcome = client.hello(1)?;
    ensure!(welcome.version == 1 && welcome.driver.as_str() == "bulkhead.csi.local", "{welcome:?}");
    ensure!(welcome.csi_socket.as_str() == rig.kubelet.csi_socket().to_string_lossy() && welcome.registers);
    let names: Vec<&str> = welcome.publish_directories.as_slice().iter().map(|own| own.name.as_str()).collect();
    ensure!(names == ["kubelet-pods", "kubelet-csi", "work"], "{names:?}");
    client.ask_all([create("vol-a", directory_spec(1 << 20)), bind("vol-a", "a")])?;
    client.ask_all([unbind("vol-a", "a"), delete("vol-a")])
}

fn a_client_without_a_version_is_told_so(rig: &mut Rig) -> Result<()> {
    let client = HelperClient::connect(&rig.helper_socket())?;
    let refusal = client.hello(0).err().context("version 0 is welcome")?;
    ensure!(format!("{refusal:#}").contains("not a client of this protocol"), "{refusal:#}");
    client.check_closed()
}

/// A client that knows both versions, on a connection that uses the older one.
fn a_request_newer_than_the_agreed_version_is_refused(rig: &mut Rig) -> Result<()> {
    let client = HelperClient::connect(&rig.helper_socket())?;
    client.hello(1)?;
    client.ask(&create("vol-a", directory_spec(1 << 20)))?;
    let request = discard("vol-a");
    denied(client.request(&request)?, ErrorKind::Invalid, "delete-unused needs protocol version 2")?;
    // The connection stays open, and the volume was not touched.
    client.ask(&Request::Usage { volume: volume("vol-a"), target: None })?;
    HelperClient::welcomed(&rig.helper_socket())?.ask(&request)?;
    Ok(())
}

fn an_unknown_request_closes_the_connection_only(rig: &mut Rig) -> Result<()> {
    let newer = HelperClient::welcomed(&rig.helper_socket())?;
    let other = HelperClient::welcomed(&rig.helper_socket())?;
    // The number after this version's last request, which is that of the last row.
    let mut packet = encode(&Request::Owner { volume: volume("vol-a") })?;
    packet[0] = u8::try_from(Request::ROWS.len())?;
    newer.send(&packet)?;
    newer.check_closed()?;
    other.ask(&Request::List { after: None, limit: 1 })?;
    Ok(())
}

/// The test takes the helper's place: the frontend's first packet is frozen forever, and an older helper's answer is
/// enough.
fn the_frontend_says_hello_with_its_highest_version(rig: &mut Rig) -> Result<()> {
    let path = rig.helper_socket();
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(&path)?)?;
    rustix::net::listen(&listener, 8)?;
    chown(&path, Some(FRONTEND_UID), None)?;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
    let mut command = Command::new(program("bulkhead-frontend")?);
    command.arg("--helper-socket").arg(&path).args(["--node-id", "node"]);
    command.uid(FRONTEND_UID).gid(FRONTEND_UID).current_dir("/");
    let mut frontend = Daemon::start("frontend", &mut command, &rig.logs())?;
    let connection = rustix::net::accept(&listener)?;
    rustix::net::sockopt::set_socket_timeout(
        &connection,
        rustix::net::sockopt::Timeout::Recv,
        Some(rig.patience(Duration::from_secs(10))),
    )?;
    let receive = || -> Result<Vec<u8>> {
        let mut packet = vec![0; 4096];
        let (_, length) = rustix::net::recv(&connection, &mut packet, RecvFlags::empty())?;
        packet.truncate(length);
        Ok(packet)
    };
    let hello = receive().context("wait for a hello")?;
    ensure!(hello == encode(&Hello::new(HIGHEST_VERSION))?, "{hello:02x?}");
    let welcome = Welcome {
        version: 1,
        release: Text::new("0.0.9"),
        driver: "older.example".parse()?,
        csi_socket: Text::new("/run/older/csi.sock"),
        registers: false,
        publish_directories: Default::default(),
        pools: Default::default(),
    };
    rustix::net::send(&connection, &encode(&Ok::<_, bulkhead_protocol::Error>(welcome))?, SendFlags::NOSIGNAL)?;
    // What it asks for next is a request of version 1.
    let next: Request = decode(&receive().context("wait for the first request")?)?;
    ensure!(next == Request::Listen { socket: Socket::Csi }, "the first request is {next:?}");
    frontend.check_alive()?;
    frontend.kill()?;
    std::fs::remove_file(&path)?;
    Ok(())
}
