//! What a frontend serves over HTTP: its metrics and its probes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::rig::Rig;

/// The flags that make a frontend serve them on a port of its choice.
pub const FLAGS: [&str; 2] = ["--metrics-address", "127.0.0.1:0"];

/// The flag that makes it say there whose the volumes are.
pub const WITH_OWNERS: &str = "--share-owners";

/// Makes the next frontend of `rig` serve none.
pub fn leave_out(rig: &mut Rig) {
    rig.frontend_flags.retain(|flag| flag != WITH_OWNERS && !FLAGS.iter().any(|usual| flag == usual));
}

/// Makes the next frontend of `rig` serve them at this address.
pub fn serve_at(rig: &mut Rig, address: &str) {
    leave_out(rig);
    rig.frontend_flags.extend([FLAGS[0], address].map(Into::into));
}

/// How a frontend logs the address at which it serves them.
const SERVING: &str = "serving metrics and probes address=";

/// Returns where the latest frontend of `rig` serves them.
pub fn address(rig: &Rig) -> Result<String> {
    let mut address = String::new();
    // The log is written by a separate thread.
    crate::wait::until(crate::pace::patience(Duration::from_secs(10)), || {
        let log = rig.frontend_log()?;
        let (_, rest) = log.split_once(SERVING).context("the frontend does not say where it serves metrics")?;
        address = rest.split_whitespace().next().context("an address")?.to_owned();
        Ok(())
    })?;
    Ok(address)
}

/// The latest frontend's response to a request for `path`: the status and the body.
pub fn get(rig: &Rig, path: &str) -> Result<(u16, String)> {
    fetch(&address(rig)?, path)
}

/// The response of the server at `address` to a request for `path`: the status and the body.
pub fn fetch(address: &str, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(crate::pace::patience(Duration::from_secs(10))))?;
    // A newer version of HTTP may send the body in chunks.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("an answer by HTTP: {answer}"))?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Ok((status.with_context(|| format!("a status: {head}"))?, body.to_owned()))
}

/// Checks that /readyz answers with this status, and that its report contains this part.
pub fn check_ready(rig: &Rig, status: u16, part: &str) -> Result<()> {
    let (found, report) = get(rig, "/readyz")?;
    ensure!(found == status && report.contains(part), "status {found}, not {status} with {part:?}: {report}");
    Ok(())
}
