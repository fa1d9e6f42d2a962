//! The connection to the agent in the machine: frames over a socket whose other end is a port of the guest.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use bulkhead_vm_agent::{Decoder, Frame, MAX_PAYLOAD};

/// Our end of the connection.
pub struct Channel {
    socket: UnixStream,
    frames: Receiver<Frame>,
}

/// What has arrived, or why nothing has.
pub enum Event {
    /// A frame.
    Frame(Frame),
    /// Nothing arrived in time.
    Silence,
    /// The machine has ended, or has sent bytes that are not a frame.
    Closed,
}

impl Channel {
    /// A channel, and the socket to pass to the machine.
    pub fn new() -> Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair().context("make a socket pair for the machine")?;
        let mut reader = ours.try_clone()?;
        let (sender, frames) = channel();
        thread::spawn(move || {
            let mut decoder = Decoder::default();
            let mut buffer = [0; 65536];
            loop {
                match reader.read(&mut buffer) {
                    Ok(length) if length > 0 => decoder.push(&buffer[..length]),
                    _ => return,
                }
                loop {
                    match decoder.next_frame() {
                        Ok(Some(frame)) => {
                            if sender.send(frame).is_err() {
                                return;
                            }
                        }
                        Ok(None) => break,
                        Err(_) => return,
                    }
                }
            }
        });
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

    /// Asks the agent to kill the command.
    pub fn send_kill(&mut self) -> Result<()> {
        self.send(&Frame::Kill)
    }

    fn send(&mut self, frame: &Frame) -> Result<()> {
        self.socket.write_all(&frame.encode()).context("write to the machine's agent")
    }

    /// Waits for the next frame.
    pub fn receive(&self, patience: Duration) -> Event {
        match self.frames.recv_timeout(patience) {
            Ok(frame) => Event::Frame(frame),
            Err(RecvTimeoutError::Timeout) => Event::Silence,
            Err(RecvTimeoutError::Disconnected) => Event::Closed,
        }
    }
}
