//! The token that an agent sends with its requests: that of the kubeconfig's file, which an operator replaces, or the one
//! that the agent has renewed for itself.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderValue, StatusCode};
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tower::util::BoxCloneService;
use tower::{BoxError, ServiceExt};
use tracing::{info, warn};

use super::own_token::{OwnToken, Token, Unfit};
use super::token::Claims;
use super::transport::Transport;

/// How long a file that was read is believed: it may be replaced at any time.
const BELIEVED: Duration = Duration::from_secs(10);

/// The token for the API server. Clones share the same state.
#[derive(Clone, Debug)]
pub struct Credential(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    given: PathBuf,
    own: Option<OwnToken>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What the file contained when it was last read.
    given: String,
    read: Instant,
    /// What was said about the agent's own token.
    told: Option<Unfit>,
}

/// The token that is used now.
#[derive(Debug, PartialEq)]
pub enum Used {
    /// That of the file, and what it says if it says anything.
    Given(String, Option<Claims>),
    /// The agent's own.
    Own(Token),
}

impl Used {
    /// The token itself.
    fn text(&self) -> &str {
        match self {
            Self::Given(text, _) => text.trim(),
            Self::Own(token) => token.text.trim(),
        }
    }

    /// Returns what it says.
    pub fn claims(&self) -> Option<&Claims> {
        match self {
            Self::Given(_, claims) => claims.as_ref(),
            Self::Own(token) => Some(&token.claims),
        }
    }
}

impl Credential {
    /// The token in the file `given`, or the agent's own if it has one.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn new(given: PathBuf, own: Option<OwnToken>) -> io::Result<Self> {
        let state = State { given: std::fs::read_to_string(&given)?, read: Instant::now(), told: None };
        Ok(Self(Arc::new(Inner { given, own, state: Mutex::new(state) })))
    }

    /// Returns where the agent's own token is kept, if it is to renew its token.
    pub fn own(&self) -> Option<&OwnToken> {
        self.0.own.as_ref()
    }

    /// The file that an operator replaces.
    pub fn given(&self) -> &Path {
        &self.0.given
    }

    /// The token to use now.
    pub fn used(&self) -> Used {
        self.used_at(Instant::now())
    }

    fn used_at(&self, now: Instant) -> Used {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(state.read) > BELIEVED {
            // One that was read is used until there is another.
            if let Ok(given) = std::fs::read_to_string(&self.0.given) {
                state.given = given;
            }
            state.read = now;
        }
        let claims = Claims::of(&state.given);
        let own = match (&self.0.own, &claims) {
            (Some(own), Some(given)) => own.fit(given, Timestamp::now()),
            _ => Ok(None),
        };
        let unfit = own.as_ref().err().cloned();
        if unfit.is_some() && unfit != state.told {
            self.tell(unfit.as_ref());
        }
        state.told = unfit;
        match (own, &claims) {
            (Ok(Some(own)), Some(given)) if is_preferred(&own.claims, given) => Used::Own(own),
            _ => Used::Given(state.given.clone(), claims),
        }
    }

    fn tell(&self, unfit: Option<&Unfit>) {
        let (Some(own), Some(why)) = (&self.0.own, unfit) else { return };
        let (file, given) = (own.file(), self.0.given.display());
        warn!(
            "the token that the agent has renewed itself, in {}, is not used: {why}; using that of {given}",
            file.display()
        );
    }

    /// Uses `text`, a new token that says `claims`, from now on, unless another one is better.
    pub fn renew(&self, text: String, claims: Claims) {
        let Some(own) = &self.0.own else { return };
        let end = claims.end;
        match own.replace(Token { text, claims }) {
            Ok(()) => info!(%end, "the agent has renewed its token for the API server"),
            Err(error) => warn!(
                %end,
                "the agent has renewed its token for the API server, but cannot keep it in {} for after a restart: {error}",
                own.file().display()
            ),
        }
    }

    /// `transport`, with the token in each request.
    pub fn authorize(self, transport: Transport) -> Transport {
        let service = tower::service_fn(move |mut request: http::Request<kube::client::Body>| {
            let (credential, transport) = (self.clone(), transport.clone());
            async move {
                let used = credential.used();
                let mut header = HeaderValue::try_from(format!("Bearer {}", used.text()))?;
                header.set_sensitive(true);
                request.headers_mut().insert(AUTHORIZATION, header);
                let answer = transport.oneshot(request).await?;
                if let (StatusCode::UNAUTHORIZED, Used::Own(token), Some(own)) =
                    (answer.status(), &used, credential.own())
                {
                    own.refused(&token.text, Timestamp::now());
                }
                Ok::<_, BoxError>(answer)
            }
        });
        BoxCloneService::new(service)
    }
}

/// Returns whether an agent's own token is used rather than the one that an operator has given it: that of the two
/// which is good for longer, but not one that is older than what the operator has put in its place.
fn is_preferred(own: &Claims, given: &Claims) -> bool {
    own.end >= given.end && own.issued >= given.issued
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::super::token::fixtures::token;
    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn given(&self, text: &str) -> PathBuf {
            let file = self.0.path().join("given");
            std::fs::write(&file, text).unwrap();
            file
        }

        fn credential(&self, given: &str) -> Credential {
            let own = OwnToken::in_directory(self.0.path().to_owned());
            Credential::new(self.given(given), Some(own)).unwrap()
        }
    }

    /// Now, in seconds, plus this.
    fn soon(seconds: i64) -> i64 {
        Timestamp::now().as_second() + seconds
    }

    fn is_own(credential: &Credential) -> bool {
        matches!(credential.used(), Used::Own(_))
    }

    fn renew(credential: &Credential, text: &str) {
        credential.renew(text.to_owned(), Claims::of(text).unwrap());
    }

    #[test]
    fn the_token_that_is_good_for_longer_is_used_and_survives_a_restart() {
        let files = Files(tempfile::tempdir().unwrap());
        let given = token("1", soon(-100), soon(500));
        let credential = files.credential(&given);
        assert_eq!(credential.used().text(), given);
        let shorter = token("1", soon(-10), soon(400));
        renew(&credential, &shorter);
        assert_eq!(credential.used().text(), given);
        let renewed = token("1", soon(-10), soon(590));
        renew(&credential, &renewed);
        assert_eq!(credential.used().text(), renewed);
        assert_eq!(files.credential(&given).used().text(), renewed);
        assert!(is_own(&files.credential(&token("1", soon(-700), soon(-100)))), "the file's may have expired");
    }

    #[test]
    fn what_an_operator_puts_there_later_is_used() {
        let files = Files(tempfile::tempdir().unwrap());
        let given = token("1", soon(-100), soon(500));
        renew(&files.credential(&given), &token("1", soon(-50), soon(5000)));
        assert!(is_own(&files.credential(&given)));
        assert!(!is_own(&files.credential(&token("1", soon(-10), soon(590)))));
        assert!(!is_own(&files.credential(&token("2", soon(-100), soon(500)))), "the Node was registered again");
        assert!(!is_own(&files.credential("an opaque token")));
    }

    #[test]
    fn the_file_is_read_again() {
        let files = Files(tempfile::tempdir().unwrap());
        let (credential, begun) = (files.credential("first"), Instant::now());
        files.given("second\n");
        let used = |seconds| credential.used_at(begun + Duration::from_secs(seconds)).text().to_owned();
        assert_eq!(used(1), "first");
        assert_eq!(used(60), "second");
        std::fs::remove_file(credential.given()).unwrap();
        assert_eq!(used(120), "second");
    }

    #[tokio::test]
    async fn a_token_that_the_server_does_not_accept_is_not_sent_again() {
        let files = Files(tempfile::tempdir().unwrap());
        let given = token("1", soon(-100), soon(500));
        let credential = files.credential(&given);
        let renewed = token("1", soon(-10), soon(590));
        renew(&credential, &renewed);
        let sent = Arc::new(Mutex::new(Vec::new()));
        let server = {
            let (sent, renewed) = (Arc::clone(&sent), renewed.clone());
            tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let (sent, renewed) = (Arc::clone(&sent), renewed.clone());
                async move {
                    let header = request.headers()[AUTHORIZATION].to_str().unwrap().to_owned();
                    let status = if header.ends_with(&renewed) { 401 } else { 200 };
                    sent.lock().unwrap().push(header);
                    let body: Box<kube::client::DynBody> =
                        Box::new(kube::client::Body::empty().map_err(BoxError::from));
                    Ok::<_, BoxError>(http::Response::builder().status(status).body(body)?)
                }
            })
        };
        let service = credential.authorize(BoxCloneService::new(server));
        for _ in 0..2 {
            let request = http::Request::new(kube::client::Body::empty());
            let _ = service.clone().oneshot(request).await.unwrap();
        }
        let expected = [renewed, given].map(|token| format!("Bearer {token}"));
        assert_eq!(*sent.lock().unwrap(), expected);
    }
}
