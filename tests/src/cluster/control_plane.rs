//! A real control plane on this machine: etcd, API server, controller manager and scheduler.

use std::env;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tempfile::TempDir;

use super::access::Access;
use super::audit::SIDECARS;
use super::component::{Component, Traces};
use super::credentials::Credentials;
use super::snapshots;

/// Names the directory that contains the programs of the control plane.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// How long a start may take. The API server alone needs five seconds of processor time.
pub const START: Duration = Duration::from_secs(120);

/// A running control plane. It ends when this value is dropped, or with the process that started it.
#[derive(Debug)]
pub struct ControlPlane {
    components: Vec<Component>,
    directory: TempDir,
    credentials: Credentials,
    server: String,
}

impl ControlPlane {
    /// Starts one, and waits until it serves and its controllers are working.
    pub fn start() -> Result<Self> {
        let control_plane = Self::launch()?;
        control_plane.wait_for_controllers()?;
        Ok(control_plane)
    }

    /// Starts one whose API server reaches nodes only through a proxy, which listens on this Unix socket and understands
    /// HTTP's CONNECT.
    pub fn start_behind(proxy: &Path) -> Result<Self> {
        let control_plane = Self::launch_with(Some(proxy))?;
        control_plane.wait_for_controllers()?;
        Ok(control_plane)
    }

    /// Starts one, and waits until the API server serves. The controllers may still be starting then.
    pub fn launch() -> Result<Self> {
        Self::launch_with(None)
    }

    fn launch_with(proxy: Option<&Path>) -> Result<Self> {
        let assets = assets()?;
        let directory = tempfile::Builder::new().prefix("bulkhead-control-plane-").tempdir()?;
        let root = directory.path();
        let credentials = Credentials::make(&root.join("pki"))?;
        let [client, peer, api] = free_ports()?;
        let server = format!("https://127.0.0.1:{api}");
        let mut control_plane = Self { components: Vec::new(), directory, credentials, server };
        control_plane.write_kubeconfigs()?;
        control_plane.run(&assets, "etcd", control_plane.etcd_flags(client, peer))?;
        let mut flags = control_plane.api_server_flags(client, api)?;
        if let Some(proxy) = proxy {
            fs::write(control_plane.path("egress.json"), egress(proxy).to_string())?;
            flags.push(format!("--egress-selector-config-file={}", control_plane.path("egress.json")));
            // Its node is asked for the health of volumes.
            flags.push("--feature-gates=CSIVolumeHealth=true".to_owned());
            // Nobody here knows a node's name.
            flags.push("--kubelet-preferred-address-types=InternalIP".to_owned());
        }
        control_plane.run(&assets, "kube-apiserver", flags)?;
        let access = control_plane.access()?;
        control_plane.explained("the API server", "kube-apiserver", access.wait_until_ready(START))?;
        control_plane.run(&assets, "kube-controller-manager", control_plane.manager_flags())?;
        control_plane.run(&assets, "kube-scheduler", control_plane.scheduler_flags())?;
        Ok(control_plane)
    }

    /// Waits until the controllers of a launched control plane are working.
    pub fn wait_for_controllers(&self) -> Result<()> {
        let works = self.access()?.wait_for_service_account("default", "default", START);
        self.explained("the controller manager", "kube-controller-manager", works)
    }

    /// Also runs a snapshot controller, once its resources are defined.
    pub fn run_snapshot_controller(&mut self) -> Result<()> {
        let flags = snapshots::controller_flags(&self.directory().join("admin.kubeconfig"));
        let traces = Traces::new(self.directory(), "snapshot-controller");
        self.components.push(Component::start(traces, snapshots::controller()?, flags)?);
        Ok(())
    }

    /// The directory of its files, which gives a test access to it.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Access as administrator.
    pub fn access(&self) -> Result<Access> {
        Access::of(self.directory())
    }

    /// The text of a kubeconfig for another user, for instance `system:node:NAME` of `system:nodes`.
    pub fn kubeconfig(&self, user: &str, group: Option<&str>) -> Result<String> {
        self.credentials.kubeconfig(&self.server, user, group)
    }

    /// Ends it but keeps its files. Returns their directory.
    pub fn keep(mut self) -> PathBuf {
        self.components.clear();
        self.directory.disable_cleanup(true);
        self.directory.path().to_owned()
    }

    fn run(&mut self, assets: &Path, name: &'static str, flags: Vec<String>) -> Result<()> {
        let traces = Traces::new(self.directory(), name);
        self.components.push(Component::start(traces, assets.join(name), flags)?);
        Ok(())
    }

    /// Adds the end of a component's log to an error.
    fn explained(&self, what: &str, component: &'static str, result: Result<()>) -> Result<()> {
        result.with_context(|| {
            let log = fs::read(Traces::new(self.directory(), component).log()).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            format!("{what} does not start: {}", lines[lines.len().saturating_sub(8)..].join("\n"))
        })
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn write_kubeconfigs(&self) -> Result<()> {
        let users = [
            ("admin", "admin", Some("system:masters")),
            ("manager", "system:kube-controller-manager", None),
            ("scheduler", "system:kube-scheduler", None),
        ];
        for (file, user, group) in users {
            fs::write(self.path(&format!("{file}.kubeconfig")), self.kubeconfig(user, group)?)?;
        }
        Ok(())
    }

    fn etcd_flags(&self, client: u16, peer: u16) -> Vec<String> {
        let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        vec![
            format!("--data-dir={}", self.path("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            // Its data need not survive a crash of the machine.
            "--unsafe-no-fsync".to_owned(),
            "--log-level=warn".to_owned(),
        ]
    }

    fn api_server_flags(&self, etcd: u16, port: u16) -> Result<Vec<String>> {
        fs::write(self.path("audit-policy.json"), audit_policy().to_string())?;
        let credentials = &self.credentials;
        Ok(vec![
            format!("--etcd-servers=http://127.0.0.1:{etcd}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            format!("--tls-cert-file={}", credentials.server_certificate().display()),
            format!("--tls-private-key-file={}", credentials.server_key().display()),
            format!("--client-ca-file={}", credentials.authority().display()),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", credentials.token_public_key().display()),
            format!("--service-account-signing-key-file={}", credentials.token_key().display()),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            // Endpoints with a loopback address are invalid.
            "--endpoint-reconciler-type=none".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            "--allow-privileged=true".to_owned(),
            format!("--audit-policy-file={}", self.path("audit-policy.json")),
            format!("--audit-log-path={}", self.path("audit.log")),
            // An entry must be in the log before its request is answered.
            "--audit-log-mode=blocking-strict".to_owned(),
            "--audit-log-maxsize=4096".to_owned(),
        ])
    }

    fn manager_flags(&self) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.path("manager.kubeconfig")),
            format!("--root-ca-file={}", self.credentials.authority().display()),
            format!("--service-account-private-key-file={}", self.credentials.token_key().display()),
            "--use-service-account-credentials=true".to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
            // There is no kubelet to renew the nodes' leases.
            "--node-monitor-grace-period=24h".to_owned(),
            // With its default of twenty requests a second it would be the bottleneck.
            "--kube-api-qps=1000".to_owned(),
            "--kube-api-burst=2000".to_owned(),
        ]
    }

    fn scheduler_flags(&self) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.path("scheduler.kubeconfig")),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ]
    }
}

/// The directory with the programs.
pub fn assets() -> Result<PathBuf> {
    let directory = env::var_os(ASSETS).map(PathBuf::from);
    let directory = directory.with_context(|| {
        format!(
            "${ASSETS} is not set: it names the directory with the programs of a control plane; cargo xtask sets it"
        )
    })?;
    ensure!(directory.is_dir(), "${ASSETS} names {}, which is not a directory", directory.display());
    Ok(directory)
}

/// Sends what goes to kubelets and pods through a proxy.
fn egress(proxy: &Path) -> serde_json::Value {
    let connection = json!({ "proxyProtocol": "HTTPConnect", "transport": { "uds": { "udsName": proxy } } });
    json!({
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{ "name": "cluster", "connection": connection }],
    })
}

/// Logs the requests of the agents' service account and of another driver's sidecars, one line each.
fn audit_policy() -> serde_json::Value {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            { "level": "Metadata", "userGroups": ["system:serviceaccounts:bulkhead-system"] },
            { "level": "Metadata", "users": SIDECARS },
            { "level": "None" },
        ],
    })
}

/// Ports that no process is currently listening on.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}
