//! The frames that xtask and its agent in the virtual machine exchange over one port: of virtio-serial under QEMU, and a
//! serial line in user-mode Linux.
//!
//! A frame is a kind (one byte), a length (four bytes, little endian) and that many bytes. Each is written with one
//! system call and is small enough for one virtio buffer, and for what a terminal takes at once, so an agent that is killed
//! never leaves half a frame behind.

use std::io::{self, Read};

/// The name by which the guest finds the port.
pub const PORT_NAME: &str = "bulkhead.agent";

/// The variable that names the device where the port has no name. The kernel passes it on from its command line.
pub const PORT_VARIABLE: &str = "BULKHEAD_AGENT_PORT";

const HEADER: usize = 5;

/// The longest payload of a frame.
pub const MAX_PAYLOAD: usize = 2048 - HEADER;

/// One message in either direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Guest: the agent is ready for commands.
    Ready,
    /// Guest: something that a command, or a process it left running, wrote to standard output.
    Stdout(Vec<u8>),
    /// Guest: the same for standard error.
    Stderr(Vec<u8>),
    /// Guest: the command ended with this wait status.
    Exited(i32),
    /// Host: a piece of a shell command; it starts when a piece is shorter than [`MAX_PAYLOAD`].
    Command(Vec<u8>),
    /// Host: kill the running command and its process group.
    Kill,
}

impl Frame {
    /// The frame's bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, payload): (u8, &[u8]) = match self {
            Frame::Ready => (1, &[]),
            Frame::Stdout(bytes) => (2, bytes),
            Frame::Stderr(bytes) => (3, bytes),
            Frame::Exited(status) => (4, &status.to_le_bytes()),
            Frame::Command(bytes) => (5, bytes),
            Frame::Kill => (6, &[]),
        };
        [&[kind], &(payload.len() as u32).to_le_bytes()[..], payload].concat()
    }

    /// Waits for a frame. Bytes that are none are an error: the two sides are out of step.
    pub fn read(port: &mut impl Read) -> io::Result<Frame> {
        let mut header = [0; HEADER];
        port.read_exact(&mut header)?;
        let [kind, length @ ..] = header;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_PAYLOAD {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut payload = vec![0; length];
        port.read_exact(&mut payload)?;
        match kind {
            1 => Ok(Frame::Ready),
            2 => Ok(Frame::Stdout(payload)),
            3 => Ok(Frame::Stderr(payload)),
            4 => Ok(Frame::Exited(i32::from_le_bytes(payload.try_into().map_err(|_| io::ErrorKind::InvalidData)?))),
            5 => Ok(Frame::Command(payload)),
            6 => Ok(Frame::Kill),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let frames = [
            Frame::Ready,
            Frame::Stdout(vec![0; MAX_PAYLOAD]),
            Frame::Stderr(b"oops".to_vec()),
            Frame::Exited(-1),
            Frame::Command(b"true".to_vec()),
            Frame::Kill,
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        let mut port = bytes.as_slice();
        assert_eq!(frames.each_ref().map(|_| Frame::read(&mut port).unwrap()), frames);
        assert!(port.is_empty() && Frame::read(&mut port).is_err());
    }

    #[test]
    fn noise_is_refused() {
        for noise in [b"login: root".as_slice(), &[7, 0, 0, 0, 0], &[4, 1, 0, 0, 0, 0]] {
            assert_eq!(Frame::read(&mut &noise[..]).unwrap_err().kind(), io::ErrorKind::InvalidData, "{noise:?}");
        }
    }
}
