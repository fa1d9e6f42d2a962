//! The frames that xtask and its agent in the virtual machine exchange over one port: of virtio-serial under QEMU, and a
//! serial line in user-mode Linux.
//!
//! A frame is a kind (one byte), a length (four bytes, little endian) and that many bytes. Each is written with one
//! system call and is small enough for one virtio buffer, and for what a terminal takes at once, so an agent that is killed
//! never leaves half a frame behind.

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
    /// Guest: the agent, in the boot with this id, is ready for commands.
    Ready(String),
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

/// The bytes received are not a frame: the two sides are out of step.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

impl Frame {
    /// The frame's bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, payload): (u8, &[u8]) = match self {
            Frame::Ready(boot) => (1, boot.as_bytes()),
            Frame::Stdout(bytes) => (2, bytes),
            Frame::Stderr(bytes) => (3, bytes),
            Frame::Exited(status) => (4, &status.to_le_bytes()),
            Frame::Command(bytes) => (5, bytes),
            Frame::Kill => (6, &[]),
        };
        let mut frame = Vec::with_capacity(HEADER + payload.len());
        frame.push(kind);
        frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        frame.extend_from_slice(payload);
        frame
    }

    fn decode(kind: u8, payload: Vec<u8>) -> Result<Frame, Malformed> {
        match kind {
            1 => String::from_utf8(payload).map(Frame::Ready).map_err(|_| Malformed),
            2 => Ok(Frame::Stdout(payload)),
            3 => Ok(Frame::Stderr(payload)),
            4 => Ok(Frame::Exited(i32::from_le_bytes(payload.try_into().map_err(|_| Malformed)?))),
            5 => Ok(Frame::Command(payload)),
            6 => Ok(Frame::Kill),
            _ => Err(Malformed),
        }
    }
}

/// Cuts the bytes of a port into frames.
#[derive(Default)]
pub struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    /// Adds bytes as they are read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame, if there is one yet.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some((&[kind, a, b, c, d], rest)) = self.buffer.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > MAX_PAYLOAD {
            return Err(Malformed);
        }
        let Some(payload) = rest.get(..length).map(<[u8]>::to_vec) else {
            return Ok(None);
        };
        self.buffer.drain(..HEADER + length);
        Frame::decode(kind, payload).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let frames = [
            Frame::Ready("boot".into()),
            Frame::Stdout(vec![0; MAX_PAYLOAD]),
            Frame::Stderr(b"oops".to_vec()),
            Frame::Exited(-1),
            Frame::Command(b"true".to_vec()),
            Frame::Kill,
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        for cut in [1, 3, 7, 4096, bytes.len()] {
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for piece in bytes.chunks(cut) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    seen.push(frame);
                }
            }
            assert_eq!(seen, frames, "cut into pieces of {cut}");
        }
    }

    #[test]
    fn noise_is_refused() {
        let mut decoder = Decoder::default();
        decoder.push(b"login: root");
        assert_eq!(decoder.next_frame(), Err(Malformed));
    }
}
