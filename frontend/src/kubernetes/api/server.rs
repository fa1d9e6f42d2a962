//! The API server: where it is, and as whom.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Once;
use std::time::Duration;

use bulkhead_api::projection::Projection;
use http::Uri;
use http::uri::Scheme;
use kube::client::ClientBuilder;
use kube::config::{Cluster, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::util::{MapFutureLayer, MapResponseLayer};
use tracing::info;

use super::between::BetweenLayer;
use super::credential::Credential;
use super::instrument::Observe;
use super::own_token::OwnToken;
use super::pace::Pace;
use super::rewound::Rewound;
use super::transport::transport;
use super::{retry_after, silence};
use crate::readiness::Readiness;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The environment does not change: one line in the log is enough, however often the server is not reached.
static PROXY_TOLD: Once = Once::new();

/// Where the API server is, and the credentials to use with it.
#[derive(Clone, Debug)]
pub enum ApiServer {
    /// Those of the pod's service account.
    InCluster,
    /// Those in a kubeconfig.
    Kubeconfig {
        /// The kubeconfig; a token file that it names is read again when it changes.
        file: PathBuf,
        /// The token that the agent renews for itself, if it does.
        own: Option<OwnToken>,
    },
}

/// A way to the API server.
pub(in crate::kubernetes) struct Reached {
    /// The client. Nothing has been sent yet.
    pub client: Client,
    /// The default namespace.
    pub namespace: String,
    /// The token that the client sends, if it is from a file that an operator has to replace. The kubelet replaces that
    /// of a pod.
    pub credential: Option<Credential>,
    /// How fast the client sends.
    pub pace: Pace,
}

/// Why there is no client for the API server.
#[derive(Debug, thiserror::Error)]
pub enum ApiServerError {
    /// The pod has no usable service account.
    #[error("the pod's service account cannot be used: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    /// The kubeconfig is missing or invalid.
    #[error("kubeconfig {0} cannot be used: {1}")]
    Kubeconfig(PathBuf, kube::config::KubeconfigError),
    /// The kubeconfig's token cannot be read.
    #[error("token file {0}, which the kubeconfig names, cannot be read: {1}; put the agent's token there")]
    Token(PathBuf, std::io::Error),
    /// What is sent to the server could be read, and its answers forged, by anybody on the way.
    #[error(
        "kubeconfig {0} cannot be used: its server {1} would receive the token unencrypted, and anybody on the way could answer in its place; give an https:// address"
    )]
    Unencrypted(PathBuf, Uri),
    /// Whoever is on the way to the server could answer in its place.
    #[error(
        "kubeconfig {0} cannot be used: with insecure-skip-tls-verify, anybody on the way to {1} could receive the token and answer in its place; name the cluster's certificate-authority instead"
    )]
    Unverified(PathBuf, Uri),
    /// The kubeconfig names a proxy.
    #[error(
        "kubeconfig {0} cannot be used: it has proxy-url, and the agent connects to the API server directly; remove proxy-url, and give an address that the node reaches"
    )]
    Proxy(PathBuf),
    /// No client can be built from the configuration.
    #[error("creating a client for the API server failed: {0}")]
    Client(#[from] kube::Error),
}

impl ApiServer {
    /// Returns what a kubeconfig says. If `state` is given, the agent renews the token of the file that the kubeconfig
    /// names, and keeps its own in that directory.
    pub fn kubeconfig(file: PathBuf, state: Option<PathBuf>) -> Self {
        Self::Kubeconfig { file, own: state.map(OwnToken::in_directory) }
    }

    /// Creates a client. The watches that it begins are reported to `readiness`.
    ///
    /// # Errors
    /// See [`ApiServerError`].
    pub(in crate::kubernetes) async fn client(&self, readiness: &Readiness) -> Result<Reached, ApiServerError> {
        let mut credential = None;
        let mut config = match self {
            Self::InCluster => Config::incluster()?,
            Self::Kubeconfig { file, own } => {
                let failed = |error| ApiServerError::Kubeconfig(file.clone(), error);
                let kubeconfig = Kubeconfig::read_from(file).map_err(failed)?;
                let names_proxy = names_proxy(&kubeconfig);
                let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
                let mut config = config.map_err(failed)?;
                if !is_private(&config.cluster_url) {
                    return Err(ApiServerError::Unencrypted(file.clone(), config.cluster_url));
                }
                if config.accept_invalid_certs && !is_here(&config.cluster_url) {
                    return Err(ApiServerError::Unverified(file.clone(), config.cluster_url));
                }
                if config.proxy_url.take().is_some() {
                    if names_proxy {
                        return Err(ApiServerError::Proxy(file.clone()));
                    }
                    PROXY_TOLD.call_once(|| {
                        info!("HTTPS_PROXY is not used: the agent connects to the API server directly");
                    });
                }
                if let Some(given) = config.auth_info.token_file.take().map(PathBuf::from) {
                    let read = Credential::new(given.clone(), own.clone());
                    credential = Some(read.map_err(|error| ApiServerError::Token(given, error))?);
                }
                config
            }
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let namespace = config.default_namespace.clone();
        let (transport, pace) = (transport(&config)?, Pace::default());
        let transport = match credential.clone() {
            Some(credential) => credential.authorize(transport),
            None => transport,
        };
        let builder = ClientBuilder::new(transport, namespace.clone())
            .with_layer(&Projection)
            .with_layer(&BetweenLayer(Rewound::default()))
            .with_layer(&MapFutureLayer::new(silence::in_time))
            .with_layer(&MapResponseLayer::new(retry_after::copy_to_body))
            .with_layer(&BetweenLayer(Observe(readiness.clone())))
            .with_layer(&BetweenLayer(pace.clone()));
        Ok(Reached { client: builder.build(), namespace, credential, pace })
    }
}

/// Returns whether nobody but the server at this address can read what is sent there: it is encrypted, or does not
/// leave this machine.
fn is_private(server: &Uri) -> bool {
    is_here(server) || server.scheme() == Some(&Scheme::HTTPS)
}

/// Returns whether what is sent to this address does not leave this machine.
fn is_here(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Returns whether the file itself names a proxy; otherwise one of the client's configuration is the environment's, which
/// is meant for what leaves the cluster.
fn names_proxy(kubeconfig: &Kubeconfig) -> bool {
    let current = kubeconfig.current_context.as_deref().unwrap_or_default();
    let context =
        kubeconfig.contexts.iter().find(|entry| entry.name == current).and_then(|entry| entry.context.as_ref());
    let cluster = context.and_then(|context| kubeconfig.clusters.iter().find(|entry| entry.name == context.cluster));
    let named = |cluster: &Cluster| cluster.proxy_url.as_ref().is_some_and(|proxy| !proxy.is_empty());
    cluster.and_then(|entry| entry.cluster.as_ref()).is_some_and(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refusal(server: &str) -> Option<ApiServerError> {
        refusal_of(serde_json::json!({ "server": server })).await
    }

    async fn refusal_of(cluster: serde_json::Value) -> Option<ApiServerError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        let kubeconfig = serde_json::json!({
            "current-context": "a",
            "clusters": [{ "name": "a", "cluster": cluster }],
            "users": [{ "name": "a", "user": { "token": "secret" } }],
            "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
        });
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        ApiServer::kubeconfig(path, None).client(&Readiness::default()).await.err()
    }

    #[tokio::test]
    async fn a_token_is_not_sent_unencrypted() {
        for server in ["http://10.0.0.1:8080", "http://api.example.org", "http://127.0.0.1.example.org"] {
            let refusal = refusal(server).await.unwrap();
            assert!(matches!(refusal, ApiServerError::Unencrypted(..)), "{server}: {refusal}");
            assert!(refusal.to_string().contains(server) && !refusal.to_string().contains("secret"), "{refusal}");
        }
        for server in ["https://10.0.0.1:6443", "http://127.0.0.1:8001", "http://[::1]:8001", "http://localhost"] {
            assert!(is_private(&server.parse().unwrap()), "{server}");
        }
    }

    #[tokio::test]
    async fn a_server_is_verified_and_reached_directly() {
        let cluster = |server: &str, field: &str, value: serde_json::Value| {
            let mut cluster = serde_json::json!({ "server": server });
            cluster[field] = value;
            cluster
        };
        let (remote, skip) = ("https://10.0.0.1:6443", "insecure-skip-tls-verify");
        let refused = refusal_of(cluster(remote, skip, true.into())).await.unwrap();
        assert!(matches!(refused, ApiServerError::Unverified(..)), "{refused}");
        assert!(
            refused.to_string().contains(skip) && refused.to_string().contains("certificate-authority"),
            "{refused}"
        );
        for accepted in [cluster(remote, skip, false.into()), cluster("https://127.0.0.1:6443", skip, true.into())] {
            let refused = refusal_of(accepted.clone()).await;
            assert!(!matches!(refused, Some(ApiServerError::Unverified(..))), "{accepted}: {refused:?}");
        }
        let refused = refusal_of(cluster(remote, "proxy-url", "http://proxy:3128".into())).await.unwrap();
        assert!(matches!(refused, ApiServerError::Proxy(_)), "{refused}");
        assert!(refused.to_string().contains("remove proxy-url"), "{refused}");
    }

    /// The environment is the process's, so the test runs itself in one that has a proxy.
    #[tokio::test]
    async fn a_proxy_of_the_environment_is_not_used() {
        if std::env::var_os("HTTPS_PROXY").is_some() {
            let failed = refusal("http://127.0.0.1:8001").await;
            assert!(failed.is_none(), "{failed:?}");
            return;
        }
        let (_, module) = module_path!().split_once("::").unwrap();
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", &format!("{module}::a_proxy_of_the_environment_is_not_used")]);
        let ran = again.env("HTTPS_PROXY", "http://proxy.example.org:3128").output().unwrap();
        let told = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success() && told.contains("1 passed"), "{told}");
    }
}
