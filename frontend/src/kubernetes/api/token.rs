//! What a token of a service account says about itself: JSON Web Tokens, RFC 7519. The API server judges them; whoever
//! holds one only reads in it for how long it is good, and whose it is.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

/// The fields that say whose a token is: the cluster's, the service account's, and the Node's that it is bound to.
const HOLDER: [&str; 4] = ["/iss", "/sub", "/kubernetes.io/serviceaccount", "/kubernetes.io/node"];

/// What a token says.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    /// When it was issued.
    pub issued: Timestamp,
    /// When it expires.
    pub end: Timestamp,
    all: Value,
}

impl Claims {
    /// Returns what `token` says; `None` if it is not such a token, or does not say for how long it is good.
    pub fn of(token: &str) -> Option<Self> {
        let all: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.trim().split('.').nth(1)?).ok()?).ok()?;
        let time = |field: &str| Timestamp::from_second(all[field].as_i64()?).ok();
        Some(Self { issued: time("iat")?, end: time("exp")?, all })
    }

    /// Returns how long it is good, from its issue to its end.
    pub fn life(&self) -> SignedDuration {
        self.end.duration_since(self.issued)
    }

    /// Returns whether it is of the same account, bound to the same Node, as `other`: the same objects, and not only of
    /// the same names.
    pub fn has_holder_of(&self, other: &Self) -> bool {
        let of = |claims: &Self, field| claims.all.pointer(field).cloned();
        HOLDER.iter().all(|field| of(self, field).is_some_and(|value| Some(value) == of(other, field)))
    }
}

#[cfg(test)]
pub mod fixtures {
    //! Tokens for tests.

    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::json;

    /// A token, unsigned, of the agents' account, bound to the Node of that uid.
    pub fn token(node_uid: &str, issued: i64, end: i64) -> String {
        let account = json!({ "name": "bulkhead-agent", "uid": "a" });
        let bound = json!({ "serviceaccount": account, "node": { "name": "here", "uid": node_uid } });
        let subject = "system:serviceaccount:storage:bulkhead-agent";
        let all = json!({ "iss": "here", "sub": subject, "iat": issued, "exp": end, "kubernetes.io": bound });
        format!("x.{}.y", URL_SAFE_NO_PAD.encode(all.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_for_how_long_it_is_good() {
        let claims = Claims::of(&fixtures::token("1", 1_767_222_000, 1_767_225_600)).unwrap();
        assert_eq!(claims.end.to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(claims.life(), SignedDuration::from_hours(1));
        for other in ["", "opaque", "x.e30.y", "x.%%.y"] {
            assert_eq!(Claims::of(other), None, "{other}");
        }
    }

    #[test]
    fn a_node_that_is_registered_again_is_another_holder() {
        let of = |node| Claims::of(&fixtures::token(node, 0, 600)).unwrap();
        assert!(of("1").has_holder_of(&of("1")));
        assert!(!of("1").has_holder_of(&of("2")));
        // {"iat":0,"exp":600}
        let bare = Claims::of("x.eyJpYXQiOjAsImV4cCI6NjAwfQ.y").unwrap();
        assert!(!bare.has_holder_of(&bare), "it says nothing about its holder");
    }
}
