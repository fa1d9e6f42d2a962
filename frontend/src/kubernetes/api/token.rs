//! When a token from a file expires. Nobody renews it but the operator, and once it has expired the agent does nothing.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::time::sleep;
use tracing::{info, warn};

use super::access::Access;

/// How long before its end a token is warned of.
const NOTICE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// How often the token is looked at.
const PERIOD: Duration = Duration::from_secs(12 * 3600);

/// Logs when the token expires: each new one once, and one that expires soon again and again.
pub async fn watch_expiry(access: &Access) {
    let mut known = None;
    loop {
        let end = match access.token_file().await {
            Some(file) => tokio::fs::read_to_string(file).await.ok().and_then(|token| expiry(&token)),
            None => return,
        };
        if let Some(end) = end {
            if end.duration_since(Timestamp::now()) < NOTICE {
                warn!(%end, "the token for the API server expires soon: replace its file, or the agent will stop working");
            } else if known != Some(end) {
                info!(%end, "the token for the API server has an end: replace its file before");
            }
            known = Some(end);
        }
        sleep(PERIOD).await;
    }
}

/// When a JSON web token expires (RFC 7519, 4.1.4).
fn expiry(token: &str) -> Option<Timestamp> {
    let claims: Value = serde_json::from_slice(&decode(token.split('.').nth(1)?)?).ok()?;
    Timestamp::from_second(claims["exp"].as_i64()?).ok()
}

/// Decodes base64 for URLs (RFC 4648, 5) without padding.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let (mut bits, mut number) = (0_u32, 0);
    for digit in text.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        number += 6;
        if number >= 8 {
            number -= 8;
            decoded.push((bits >> number & 0xff) as u8);
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding() {
        assert_eq!(decode("").unwrap(), b"");
        assert_eq!(decode("Zg").unwrap(), b"f");
        assert_eq!(decode("Zm8").unwrap(), b"fo");
        assert_eq!(decode("Zm9vYmFy").unwrap(), b"foobar");
        assert_eq!(decode("-_8").unwrap(), [0xfb, 0xff]);
        assert_eq!(decode("Zg="), None);
    }

    #[test]
    fn a_token_says_when_it_expires() {
        // {"exp":1767225600}
        assert_eq!(expiry("x.eyJleHAiOjE3NjcyMjU2MDB9.y").unwrap().to_string(), "2026-01-01T00:00:00Z");
        for other in ["", "opaque", "x.e30.y", "x.%%.y"] {
            assert_eq!(expiry(other), None, "{other}");
        }
    }
}
