//! One value, one packet. The only file that names bincode, so that replacing it changes one file.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian, standard};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest packet in bytes, in both directions.
pub const MAX_PACKET: usize = 4096;

const CONFIGURATION: Configuration<LittleEndian, Fixint, Limit<MAX_PACKET>> =
    standard().with_little_endian().with_fixed_int_encoding().with_limit::<MAX_PACKET>();

/// Why a packet could not be read or written. There is no more detail, since the peer gets no answer: the connection is
/// closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// The packet is longer than [`MAX_PACKET`].
    TooLong,
    /// The packet is cut off, has an unknown variant or holds an invalid value.
    Malformed,
    /// Bytes are left over after the value.
    TrailingBytes,
}

/// `value` as a packet.
///
/// # Errors
/// `TooLong` when it does not fit one packet.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let packet = bincode::serde::encode_to_vec(value, CONFIGURATION).map_err(|_| CodecError::TooLong)?;
    if packet.len() > MAX_PACKET { Err(CodecError::TooLong) } else { Ok(packet) }
}

/// The value that fills `packet` exactly.
///
/// # Errors
/// See [`CodecError`].
pub fn decode<T: DeserializeOwned>(packet: &[u8]) -> Result<T, CodecError> {
    if packet.len() > MAX_PACKET {
        return Err(CodecError::TooLong);
    }
    let (value, length) =
        bincode::serde::decode_from_slice(packet, CONFIGURATION).map_err(|_| CodecError::Malformed)?;
    // bincode accepts bytes after the value; a peer that sends them does not speak this protocol.
    if length == packet.len() { Ok(value) } else { Err(CodecError::TrailingBytes) }
}
