//! The connection to the agent in the machine: frames over a socket whose other end is a port of the guest.

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use anyhow::{Context, Result};
use bulkhead_vm_agent::{Frame, MAX_PAYLOAD};

/// Our end of the connection.
pub struct Channel {
    socket: UnixStream,
    /// What arrives. It ends with the machine, or when that sends bytes that are not a frame.
    pub frames: Receiver<Frame>,
}

impl Channel {
    /// A channel, and the socket to pass to the machine.
    pub fn new() -> Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair().context("make a socket pair for the machine")?;
        let mut reader = BufReader::new(ours.try_clone()?);
        let (sender, frames) = channel();
        thread::spawn(move || while Frame::read(&mut reader).is_ok_and(|frame| sender.send(frame).is_ok()) {});
        Ok((Channel { socket: ours, frames }, theirs))
    }

    /// Asks the agent to run a shell command.
    pub fn send_command(&mut self, command: &str) -> Result<()> {
        let mut pieces: Vec<&[u8]> = command.as_bytes().chunks(MAX_PAYLOAD).collect();
        if pieces.last().is_none_or(|last| last.len() == MAX_PAYLOAD) {
            pieces.push(b"");
        }
        for piece in pieces {
            self.send(&Frame::Command(piece.to_vec()))?;
        }
        Ok(())
    }

    /// Sends a frame to the agent.
    pub fn send(&mut self, frame: &Frame) -> Result<()> {
        self.socket.write_all(&frame.encode()).context("write to the machine's agent")
    }
}
