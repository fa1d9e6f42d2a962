//! Which call of the client a request is part of: what puts the logs of both sides next to each other.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{CodecError, Request, decode};

/// The number of a call, chosen by the client. From version 3 on it may follow a request in its packet. It means nothing
/// to the helper, which only logs it; 0 is no call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallId(pub u32);

impl fmt::Display for CallId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { out.write_str("-") } else { write!(out, "{:08x}", self.0) }
    }
}

/// The request in a packet, and the call that it is part of.
///
/// # Errors
/// See [`CodecError`].
pub fn decode_request(packet: &[u8], version: u16) -> Result<(Request, CallId), CodecError> {
    match decode(packet) {
        Err(CodecError::TrailingBytes) if version >= 3 => decode(packet),
        request => request.map(|request| (request, CallId::default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode;

    #[test]
    fn the_number_of_a_call_may_follow_a_request_from_version_3_on() {
        let request = Request::DeleteUnused { volume: "pvc-1".parse().expect("a volume id") };
        let (plain, numbered) = (encode(&request), encode(&(&request, CallId(7))));
        let (plain, numbered) = (plain.expect("a packet"), numbered.expect("a packet"));
        for version in 1..=3 {
            assert_eq!(decode_request(&plain, version), Ok((request.clone(), CallId::default())));
        }
        assert_eq!(decode_request(&numbered, 3), Ok((request, CallId(7))));
        assert_eq!(decode_request(&numbered, 2), Err(CodecError::TrailingBytes));
        for wrong in [&numbered[..numbered.len() - 1], &[numbered.as_slice(), &[0]].concat()] {
            assert!(decode_request(wrong, 3).is_err(), "{wrong:02x?}");
        }
    }

    #[test]
    fn no_call_is_told_from_any() {
        assert_eq!([0, 0x2a, u32::MAX].map(|number| CallId(number).to_string()), ["-", "0000002a", "ffffffff"]);
    }
}
