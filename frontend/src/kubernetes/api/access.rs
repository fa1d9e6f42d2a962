//! The way to the API server.

use std::path::PathBuf;
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::util::MapResponseLayer;

use super::retry_after;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the API server is and who asks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// As the pod's service account says.
    InCluster,
    /// As a kubeconfig says; a token file that it names is read again when it changes.
    Kubeconfig(PathBuf),
}

/// Why there is no way to the API server.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The pod has no service account.
    #[error("the pod's service account cannot be used: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    /// The kubeconfig is none.
    #[error("kubeconfig {0}: {1}")]
    Kubeconfig(PathBuf, kube::config::KubeconfigError),
    /// They do not make a client.
    #[error("no client can be made for the API server: {0}")]
    Client(#[from] kube::Error),
}

impl Access {
    /// A client, and the namespace that goes with it. Nothing is sent yet.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub async fn client(&self) -> Result<(Client, String), AccessError> {
        let mut config = match self {
            Self::InCluster => Config::incluster()?,
            Self::Kubeconfig(path) => {
                let failed = |error| AccessError::Kubeconfig(path.clone(), error);
                let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(failed)?
            }
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        // Each controller tries again in its own time, and with what is known by then.
        config.default_retry = false;
        let namespace = config.default_namespace.clone();
        let builder =
            ClientBuilder::try_from(config)?.with_layer(&MapResponseLayer::new(retry_after::told_in_the_body));
        Ok((builder.build(), namespace))
    }
}
