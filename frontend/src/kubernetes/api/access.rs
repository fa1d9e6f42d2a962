//! Access to the API server: where it is, and as whom.

use std::path::PathBuf;
use std::time::Duration;

use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::util::{MapFutureLayer, MapResponseLayer};

use super::observed::ObserveLayer;
use super::projection::ProjectionLayer;
use super::transport::transport;
use super::{limits, retry_after};
use crate::readiness::Readiness;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the API server is, and the credentials to use with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Those of the pod's service account.
    InCluster,
    /// Those in a kubeconfig; a token file that it names is read again when it changes.
    Kubeconfig(PathBuf),
}

/// Why there is no client for the API server.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The pod has no usable service account.
    #[error("the pod's service account cannot be used: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    /// The kubeconfig is missing or invalid.
    #[error("kubeconfig {0} cannot be used: {1}")]
    Kubeconfig(PathBuf, kube::config::KubeconfigError),
    /// No client can be built from the configuration.
    #[error("creating a client for the API server failed: {0}")]
    Client(#[from] kube::Error),
}

impl Access {
    /// The file whose token is used, if the operator has to replace it. The kubelet replaces that of a pod.
    pub(in crate::kubernetes) async fn token_file(&self) -> Option<PathBuf> {
        let Self::Kubeconfig(path) = self else { return None };
        let kubeconfig = Kubeconfig::read_from(path).ok()?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.ok()?;
        config.auth_info.token_file.map(PathBuf::from)
    }

    /// Creates a client, and returns it with its default namespace. Nothing is sent yet. The watches that the client
    /// begins are reported to `readiness`.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub(in crate::kubernetes) async fn client(&self, readiness: &Readiness) -> Result<(Client, String), AccessError> {
        let mut config = match self {
            Self::InCluster => Config::incluster()?,
            Self::Kubeconfig(path) => {
                let failed = |error| AccessError::Kubeconfig(path.clone(), error);
                let kubeconfig = Kubeconfig::read_from(path).map_err(failed)?;
                Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(failed)?
            }
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let namespace = config.default_namespace.clone();
        let builder = ClientBuilder::new(transport(&config)?, namespace.clone())
            .with_layer(&ProjectionLayer)
            .with_layer(&MapFutureLayer::new(limits::in_time))
            .with_layer(&MapResponseLayer::new(retry_after::copy_to_body))
            .with_layer(&ObserveLayer::new(readiness.clone()));
        Ok((builder.build(), namespace))
    }
}
