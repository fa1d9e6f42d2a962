//! The network of a machine in user-mode Linux: passt, an ordinary program of this host, connects it to the loopback
//! device, without any privileges, as QEMU does for its own guests.
//!
//! The kernel reads and writes Ethernet frames on a socket that keeps their boundaries. passt takes a stream, in which each
//! frame follows its length (four bytes, big endian). Two threads translate.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;

use anyhow::{Context, Result};
use fs_err::File;
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use crate::process::command;

/// What passt says, in the machine's directory.
pub const LOG: &str = "network.log";

/// The longest frame, which passt's own limit does not exceed.
const LONGEST: usize = 65_536;

/// The machine's address, and the host's as the machine sees it: those of QEMU's network.
const ADDRESSES: [&str; 6] = ["--address", "10.0.2.15", "--netmask", "255.255.255.0", "--gateway", "10.0.2.2"];

/// A machine's network. It ends when this value is dropped.
pub struct Network {
    passt: Child,
}

impl Network {
    /// Starts a network in which these ports of the host's loopback device lead to the machine's, and returns the kernel's
    /// end of it.
    pub fn start(ports: &[u16], directory: &Path) -> Result<(Self, OwnedFd)> {
        let (stream, passts) = UnixStream::pair().context("make a socket pair for passt")?;
        let (frames, kernels) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .context("make a socket pair for the kernel")?;
        let ports = ports.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        let mut passt = command("passt");
        passt.args(["--foreground", "--quiet", "--ipv4-only", "--no-udp", "--no-icmp"]).args(ADDRESSES);
        passt.args(["--tcp-ports", &format!("127.0.0.1/{ports}")]).args(["--fd", &passts.as_raw_fd().to_string()]);
        let log = File::create(directory.join(LOG))?.into_file();
        passt.current_dir(directory).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        fcntl_setfd(&passts, FdFlags::empty())?;
        let passt = passt.spawn().context("start passt")?;
        let (frames_too, stream_too) = (frames.try_clone()?, stream.try_clone()?);
        // Each ends when one of its sockets is closed, at the latest with its machine.
        thread::spawn(move || to_machine(stream, &frames));
        thread::spawn(move || from_machine(&frames_too, stream_too));
        Ok((Self { passt }, kernels))
    }

    /// Returns whether passt has ended, as it does when it cannot have the ports.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.passt.try_wait(), Ok(None))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // It may have ended already: then there is nothing to kill.
        let _ = self.passt.kill();
        let _ = self.passt.wait();
    }
}

fn to_machine(mut stream: UnixStream, frames: &OwnedFd) -> io::Result<()> {
    let mut frame = vec![0; LONGEST];
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let frame = usize::try_from(u32::from_be_bytes(length)).ok().and_then(|length| frame.get_mut(..length));
        let frame = frame.ok_or(io::ErrorKind::InvalidData)?;
        stream.read_exact(frame)?;
        send(frames, frame, SendFlags::NOSIGNAL)?;
    }
}

fn from_machine(frames: &OwnedFd, mut stream: UnixStream) -> io::Result<()> {
    let mut message = vec![0; 4 + LONGEST];
    loop {
        let (_, length) = recv(frames, &mut message[4..], RecvFlags::empty())?;
        if length == 0 {
            return Ok(());
        }
        message[..4].copy_from_slice(&u32::try_from(length).map_err(io::Error::other)?.to_be_bytes());
        stream.write_all(&message[..4 + length])?;
    }
}
