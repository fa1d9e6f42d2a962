//! When a token from a file expires. Only the operator renews it, and once it has expired the agent can do nothing.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::access::Access;
use crate::metrics::METRICS;

/// How long before a token expires the first warning is given.
const NOTICE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// How often the token is read: it may have been replaced.
const PERIOD: Duration = Duration::from_secs(60);

/// How often the warning about a token that expires soon is repeated.
const REPEATED: Duration = Duration::from_secs(12 * 3600);

/// Logs when the token expires: once for each new token, and repeatedly for one that expires soon, with a call of
/// `warn_of` each time.
pub async fn watch_expiry(access: &Access, warn_of: impl Fn(String)) {
    let Some(file) = access.token_file().await else { return };
    let mut watch = Expiry::default();
    loop {
        let end = tokio::fs::read_to_string(&file).await.ok().and_then(|token| expiry(&token));
        if let Some(end) = end {
            METRICS.token_expiry.with([]).set(end.as_second() as f64);
            match watch.look(end, Timestamp::now(), Instant::now()) {
                News::None => {}
                News::Known => info!(%end, "the token for the API server expires: replace its file before then"),
                News::Soon => {
                    warn!(%end, "the token for the API server expires soon: replace its file, or the agent will stop working");
                    warn_of(format!(
                        "the agent's token for the API server expires at {end}: replace its file, or the agent will stop working"
                    ));
                }
            }
        }
        sleep(PERIOD).await;
    }
}

/// What has been said about a token.
#[derive(Default)]
struct Expiry {
    known: Option<Timestamp>,
    warned: Option<Instant>,
}

/// What is to be said about it now.
#[derive(Debug, PartialEq, Eq)]
enum News {
    None,
    Known,
    Soon,
}

impl Expiry {
    fn look(&mut self, end: Timestamp, now: Timestamp, clock: Instant) -> News {
        let is_new = self.known.replace(end) != Some(end);
        if end.duration_since(now) >= NOTICE {
            return if is_new { News::Known } else { News::None };
        }
        let is_due = self.warned.is_none_or(|at| clock.duration_since(at) >= REPEATED);
        if !is_new && !is_due {
            return News::None;
        }
        self.warned = Some(clock);
        News::Soon
    }
}

/// When a JSON Web Token expires (RFC 7519, 4.1.4).
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
    fn a_token_is_warned_of_from_seven_days_before_its_end_and_not_all_the_time() {
        let (mut watch, clock, now) = (Expiry::default(), Instant::now(), Timestamp::UNIX_EPOCH);
        let days = |days: i64| now + SignedDuration::from_hours(24 * days);
        assert_eq!(watch.look(days(8), now, clock), News::Known);
        assert_eq!(watch.look(days(8), now, clock), News::None);
        assert_eq!(watch.look(days(6), now, clock), News::Soon);
        assert_eq!(watch.look(days(6), now, clock + PERIOD), News::None);
        assert_eq!(watch.look(days(6), now, clock + REPEATED), News::Soon);
        assert_eq!(watch.look(days(30), now, clock + REPEATED), News::Known, "it was replaced");
    }

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
