//! Which cluster this is: what tells it from any other, even one that has the same names.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::api::failure::Failure;
use super::api::request::request;

/// How soon an agent that may not know it asks again: the rules of an earlier release do not grant that, and may be
/// replaced at any time.
const AFTER_REFUSAL: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(600);

/// The uid of the cluster's namespace kube-system, once it is known.
#[derive(Debug, Default)]
pub struct ClusterIdentity {
    uid: OnceCell<String>,
    refused: Mutex<Refused>,
}

/// How often in a row it was not told, and when to ask again.
#[derive(Debug, Default)]
struct Refused {
    times: u32,
    next: Option<Instant>,
}

impl Refused {
    fn may_ask(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    fn again(&mut self, now: Instant) {
        let delay = AFTER_REFUSAL.saturating_mul(2_u32.saturating_pow(self.times)).min(LONGEST);
        self.times = self.times.saturating_add(1);
        self.next = Some(now + delay);
    }
}

impl ClusterIdentity {
    /// The uid; `None` while the agent may not know it.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn uid(&self, client: &Client) -> Result<Option<&str>, Failure> {
        let lock = || self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if self.uid.initialized() || !lock().may_ask(Instant::now()) {
            return Ok(self.uid.get().map(String::as_str));
        }
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let found = match request("reading the namespace kube-system", namespaces.get_metadata_opt("kube-system")).await
        {
            Err(failure) if failure.is_forbidden() => None,
            found => found?.and_then(|found| found.metadata.uid),
        };
        match found {
            Some(uid) => Ok(Some(self.uid.get_or_init(|| async { uid }).await)),
            None => {
                lock().again(Instant::now());
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_asked_for_again_less_and_less_often() {
        let (mut refused, mut now) = (Refused::default(), Instant::now());
        for seconds in [10, 20, 40, 80, 160, 320, 600, 600] {
            assert!(refused.may_ask(now));
            refused.again(now);
            assert!(!refused.may_ask(now + Duration::from_secs(seconds - 1)));
            now += Duration::from_secs(seconds);
        }
    }
}
