//! The token of an agent that runs as a service of its host: the agent renews it well before it expires, where it may, and
//! says when it expires where it may not. Once it has expired the agent can do nothing.
//!
//! One policy ([`super::confinement`]) lets an agent have no token but one for its own account and its own Node.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Api;
use kube::api::PostParams;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::api::backoff::jitter;
use super::api::credential::{Credential, Used};
use super::api::events::Reason;
use super::api::failure::Failure;
use super::api::request::request;
use super::api::token::Claims;
use super::context::Context;
use crate::metrics::METRICS;

/// How long a new token is to be good. The policy permits no more.
const LIFE: SignedDuration = SignedDuration::from_hours(30 * 24);

/// How long before a token expires the first warning is given.
const NOTICE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// How often the warning about a token that expires soon is repeated.
const REPEATED: Duration = Duration::from_secs(12 * 3600);

/// How soon a renewal that has failed is tried again: after the first failure, and at most.
const RETRY: Duration = Duration::from_secs(60);
const LONGEST_RETRY: Duration = Duration::from_secs(3600);

/// Looks after the token for as long as it is polled.
pub async fn run(context: &Context, credential: &Credential) {
    let (mut expiry, mut attempts) = (Expiry::default(), Attempts::default());
    loop {
        let used = credential.used();
        if let (Some(claims), Some(_)) = (used.claims(), credential.own())
            && is_due(&used, claims, Timestamp::now())
            && attempts.may_begin(Instant::now())
        {
            attempts.end(renew(context, credential, claims).await, Instant::now());
        }
        let renews = credential.own().is_some() && !attempts.is_failing();
        METRICS.token_renewing.with([]).set(if renews { 1.0 } else { 0.0 });
        if let Some(claims) = credential.used().claims() {
            METRICS.token_expiry.with([]).set(claims.end.as_second() as f64);
            say(context, credential, &mut expiry, &attempts, claims);
        }
        let pause = context.intervals.token;
        sleep(pause + jitter(pause / 4)).await;
    }
}

/// Returns whether there should be a new token: half of its life is over, or, for one from the operator, which may be
/// good for an hour or a year, half of what a new one would be good for is left.
fn is_due(used: &Used, claims: &Claims, now: Timestamp) -> bool {
    let left = claims.end.duration_since(now);
    match used {
        Used::Own(_) => left < claims.life() / 2,
        Used::Given(..) => left < LIFE / 2,
    }
}

/// Asks the API server for a new token, and uses it.
async fn renew(context: &Context, credential: &Credential, given: &Claims) -> Result<(), Failure> {
    let account: Vec<_> = context.agent.node.account.split(':').collect();
    let (["system", "serviceaccount", namespace, name], Some(uid)) = (&account[..], context.agent.node.uid.clone())
    else {
        let refusal = "the API server does not say which service account and which Node's uid the token is for";
        return Err(Failure::Refused(refusal.to_owned()));
    };
    let node = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(context.agent.node.name.clone()),
        uid: Some(uid),
    };
    let spec = TokenRequestSpec {
        bound_object_ref: Some(node),
        expiration_seconds: Some(LIFE.as_secs()),
        ..TokenRequestSpec::default()
    };
    let asked = TokenRequest { spec, ..TokenRequest::default() };
    let accounts: Api<ServiceAccount> = Api::namespaced(context.client.clone(), namespace);
    let parameters = PostParams::default();
    let answer = accounts.create_token_request(name, &parameters, &asked);
    let answer = request("renewing the agent's token", answer).await?;
    let token = answer.status.map(|status| status.token).unwrap_or_default();
    let Some(claims) = Claims::of(&token).filter(|claims| claims.has_holder_of(given)) else {
        return Err(Failure::Refused("the API server's new token is not for this agent and its Node".to_owned()));
    };
    if claims.end <= given.end {
        return Err(Failure::Refused(format!(
            "the API server's new token would expire at {}, earlier than the one in use",
            claims.end
        )));
    }
    credential.renew(token, claims);
    Ok(())
}

fn say(context: &Context, credential: &Credential, expiry: &mut Expiry, attempts: &Attempts, claims: &Claims) {
    let (end, file) = (claims.end, credential.given().display());
    let renews = credential.own().is_some().then_some(attempts);
    match expiry.look(claims, renews, Timestamp::now(), Instant::now()) {
        News::None => {}
        News::Known if renews.is_some() => {
            info!(%end, "the token for the API server expires; it is renewed before then")
        }
        News::Known => info!(%end, "the token for the API server expires: replace its file before then"),
        News::Soon => {
            let why =
                attempts.failure.as_ref().map(|why| format!(", and renewing it fails ({why})")).unwrap_or_default();
            warn!(%end, "the token for the API server expires soon{why}: replace {file}, or the agent will stop working");
            let note = format!(
                "the agent's token for the API server expires at {end}{why}: replace {file}, or the agent will stop working"
            );
            context.events.publish_about(context.agent.node.reference(), Reason::TokenExpiring, note);
        }
    }
}

/// The attempts to renew the token.
#[derive(Debug, Default)]
struct Attempts {
    failures: u32,
    failure: Option<String>,
    next: Option<Instant>,
}

impl Attempts {
    fn may_begin(&self, now: Instant) -> bool {
        self.next.is_none_or(|next| next <= now)
    }

    fn is_failing(&self) -> bool {
        self.failure.is_some()
    }

    fn end(&mut self, outcome: Result<(), Failure>, now: Instant) {
        let Err(failure) = outcome else {
            *self = Self::default();
            return;
        };
        let delay = RETRY.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_RETRY);
        let delay = delay.max(failure.retry_after().unwrap_or_default());
        self.failures = self.failures.saturating_add(1);
        self.next = Some(now + delay + jitter(delay / 4));
        let why = failure.to_string();
        if self.failure.as_ref() != Some(&why) {
            // It is said again, as a warning, when it matters.
            info!("the agent cannot renew its token for the API server, and uses the one that it has: {why}");
        }
        self.failure = Some(why);
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
    /// An agent that renews its token has made these attempts.
    fn look(&mut self, claims: &Claims, renews: Option<&Attempts>, now: Timestamp, clock: Instant) -> News {
        let is_new = self.known.replace(claims.end) != Some(claims.end);
        let left = claims.end.duration_since(now);
        // One that is renewed may be good for less than the notice, and there is time for several attempts.
        let is_soon = left < NOTICE && renews.is_none_or(|attempts| attempts.is_failing() && left < claims.life() / 3);
        if !is_soon {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::api::own_token::Token;
    use crate::kubernetes::api::token::fixtures::token;

    const DAY: i64 = 24 * 3600;

    fn claims(issued: i64, end: i64) -> Claims {
        Claims::of(&token("1", issued, end)).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_token_is_warned_of_from_seven_days_before_its_end_and_not_all_the_time() {
        let (mut watch, clock) = (Expiry::default(), Instant::now());
        let mut look = |days: i64, clock| watch.look(&claims(0, days * DAY), None, at(0), clock);
        assert_eq!(look(8, clock), News::Known);
        assert_eq!(look(8, clock), News::None);
        assert_eq!(look(6, clock), News::Soon);
        assert_eq!(look(6, clock + Duration::from_secs(60)), News::None);
        assert_eq!(look(6, clock + REPEATED), News::Soon);
        assert_eq!(look(30, clock + REPEATED), News::Known, "it was replaced");
    }

    #[test]
    fn a_token_that_is_renewed_is_warned_of_only_when_that_fails() {
        let (mut watch, clock, mut attempts) = (Expiry::default(), Instant::now(), Attempts::default());
        let day = claims(0, DAY);
        assert_eq!(watch.look(&day, Some(&attempts), at(DAY / 2), clock), News::Known);
        assert_eq!(watch.look(&day, Some(&attempts), at(DAY * 3 / 4), clock), News::None);
        attempts.end(Err(Failure::Refused("no".to_owned())), clock);
        assert_eq!(watch.look(&day, Some(&attempts), at(DAY / 2), clock), News::None, "there is time");
        assert_eq!(watch.look(&day, Some(&attempts), at(DAY * 3 / 4), clock), News::Soon);
    }

    #[test]
    fn a_token_is_renewed_at_half_of_its_life_and_a_short_one_of_the_operator_at_once() {
        let own = |claims: Claims| Used::Own(Token { text: String::new(), claims });
        let given = |claims: Claims| Used::Given(String::new(), Some(claims));
        let is_due = |used: Used, now: i64| is_due(&used, used.claims().unwrap(), at(now));
        for (life, due) in [(30 * DAY, 16 * DAY), (DAY, DAY * 2 / 3)] {
            assert!(!is_due(own(claims(0, life)), life / 3));
            assert!(is_due(own(claims(0, life)), due));
        }
        assert!(is_due(given(claims(0, 600)), 0));
        assert!(!is_due(given(claims(0, 90 * DAY)), 74 * DAY));
        assert!(is_due(given(claims(0, 90 * DAY)), 76 * DAY));
    }

    #[test]
    fn attempts_that_fail_are_made_less_and_less_often() {
        let (mut attempts, mut clock) = (Attempts::default(), Instant::now());
        for minutes in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert!(attempts.may_begin(clock));
            attempts.end(Err(Failure::Refused("no".to_owned())), clock);
            assert!(attempts.is_failing() && !attempts.may_begin(clock + Duration::from_secs(60 * minutes - 1)));
            clock += Duration::from_secs(75 * minutes);
        }
        attempts.end(Ok(()), clock);
        assert!(!attempts.is_failing() && attempts.may_begin(clock));
    }
}
