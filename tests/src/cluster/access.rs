//! Access to a control plane: a client with blocking calls, and the components, which tests stop and start.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tonic::codegen::http::Request;

use super::component::Traces;
use crate::pace::{self, Allowance};
use crate::wait;

/// A test's access to a control plane, as its administrator.
#[derive(Debug)]
pub struct Access {
    directory: PathBuf,
    runtime: Runtime,
    client: ClientHandle,
}

/// kube's client, which has no `Debug` of its own.
struct ClientHandle(Client);

impl std::fmt::Debug for ClientHandle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Client")
    }
}

impl Access {
    /// Accesses the control plane whose files are in `directory`.
    pub fn of(directory: &Path) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(connect(&directory.join("admin.kubeconfig")))?;
        Ok(Self { directory: directory.to_owned(), runtime, client: ClientHandle(client) })
    }

    /// The directory with the control plane's files.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("admin.kubeconfig")
    }

    /// kube's own client, for [`Self::run`].
    pub fn client(&self) -> Client {
        self.client.0.clone()
    }

    /// Waits for asynchronous calls.
    pub fn run<F: Future>(&self, calls: F) -> F::Output {
        self.runtime.block_on(calls)
    }

    /// Makes asynchronous calls while this thread does something else.
    pub fn spawn(&self, calls: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime.spawn(calls)
    }

    /// One of the control plane's processes: `etcd`, `kube-apiserver`, …
    pub fn component(&self, name: &'static str) -> Traces {
        Traces::new(&self.directory, name)
    }

    /// Waits until the API server reports that it is ready.
    pub fn wait_until_ready(&self, limit: Duration) -> Result<()> {
        self.wait(limit, "the API server to be ready", || {
            let request = Request::get("/readyz").body(Vec::new())?;
            let asking = self.client.0.request_text(request);
            self.run(async { tokio::time::timeout(pace::patience(Duration::from_secs(2)), asking).await })??;
            Ok(())
        })
    }

    /// Waits until the controller manager has created a service account.
    pub fn wait_for_service_account(&self, namespace: &str, name: &str, limit: Duration) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        self.wait(limit, "the controller manager to make service accounts", || {
            self.run(accounts.get(name))?;
            Ok(())
        })
    }

    /// Waits until `check` succeeds, for so long at most, or longer where the machine is slower.
    pub fn wait<T>(&self, limit: Duration, what: &str, check: impl FnMut() -> Result<T>) -> Result<T> {
        wait::within(Allowance::new(limit), check).with_context(|| format!("waiting for {what}"))
    }

    /// Waits until an object satisfies `check`, and returns it.
    pub fn wait_for<K>(
        &self,
        api: &Api<K>,
        name: &str,
        limit: Duration,
        what: &str,
        mut check: impl FnMut(&K) -> Result<()>,
    ) -> Result<K>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        self.wait(limit, &format!("{name} {what}"), || {
            let object = self.run(api.get(name))?;
            check(&object)?;
            Ok(object)
        })
    }

    /// Waits until an object is gone.
    pub fn wait_until_gone<K>(&self, api: &Api<K>, name: &str, limit: Duration) -> Result<()>
    where
        K: Clone + DeserializeOwned + std::fmt::Debug,
    {
        self.wait(limit, &format!("{name} to be gone"), || {
            let found = self.run(api.get_opt(name))?;
            ensure!(found.is_none(), "it is still there: {found:?}");
            Ok(())
        })
    }
}

/// A client for this kubeconfig, which reports every failure immediately.
pub async fn connect(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Client::try_from(config).map_err(|error| anyhow!("make a client of {}: {error}", kubeconfig.display()))
}
