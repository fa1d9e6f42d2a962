//! The service that tells backup programs what has changed, set up as an administrator would, and clients of it.

mod client;
mod reference;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
};
use serde_json::json;
use tempfile::TempDir;

use super::fixture::{Cluster, PATIENCE};
use super::manifests::{self, NAMESPACE, kubectl};
use super::network::POD_ADDRESS;
use super::objects::pod;
use crate::commands::Printed;
use crate::kubelet::DRIVER;

pub use client::Ranges;

/// For whom tokens are made.
pub const AUDIENCE: &str = "backups.example.com";

/// The Service in front of the agents.
const SERVICE: &str = "bulkhead-snapshot-metadata";

/// The addresses of two agents.
pub const AGENTS: [&str; 2] = [POD_ADDRESS, "192.0.2.2"];

/// The kind of objects by which the service is known.
const KIND: &str = "/apis/cbt.storage.k8s.io/v1beta1/snapshotmetadataservices";

/// The service.
pub struct Service {
    authority: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
    port: u16,
}

impl Service {
    /// What it needs of the cluster. Until [`Self::remove`], no test without it may run.
    pub fn set_up(cluster: &Cluster) -> Result<Self> {
        let kubeconfig = cluster.access.kubeconfig();
        let definitions = std::env::var_os("BULKHEAD_CHANGED_BLOCKS_RESOURCES").map(PathBuf::from);
        let definitions = definitions.context("$BULKHEAD_CHANGED_BLOCKS_RESOURCES is not set; cargo xtask sets it")?;
        let definition = definitions.join("cbt.storage.k8s.io_snapshotmetadataservices.yaml");
        kubectl(&kubeconfig, &["apply", "--filename", &definition.to_string_lossy()])?;
        let name = "crd/snapshotmetadataservices.cbt.storage.k8s.io";
        kubectl(&kubeconfig, &["wait", "--for=condition=Established", "--timeout=60s", name])?;
        kubectl(&kubeconfig, &["apply", "--filename", &objects()])?;
        // All agents serve at one port.
        let port = TcpListener::bind((POD_ADDRESS, 0))?.local_addr()?.port();
        let service = Self { authority: authority()?, directory: tempfile::tempdir()?, port };
        // Agents run as another user.
        fs::set_permissions(service.directory.path(), fs::Permissions::from_mode(0o755))?;
        service.certify()?;
        Ok(service)
    }

    /// Takes it back.
    pub fn remove(&self, cluster: &Cluster) -> Result<()> {
        // A test that has failed may not have come so far.
        let _ = cluster.ask("DELETE", &format!("{KIND}/{DRIVER}"), None);
        kubectl(&cluster.access.kubeconfig(), &["delete", "--filename", &objects()]).map(drop)
    }

    /// The flags of an agent that serves at `address`.
    pub fn flags(&self, address: &str) -> [String; 4] {
        [
            "--snapshot-metadata-address".to_owned(),
            format!("{address}:{}", self.port),
            "--snapshot-metadata-certificate".to_owned(),
            self.directory.path().display().to_string(),
        ]
    }

    /// Says that the service is at `address`, which is that of an agent, since nobody here knows the Service's name.
    pub fn advertise(&self, cluster: &Cluster, address: &str) -> Result<()> {
        let authority = self.directory.path().join("authority.crt");
        fs::write(&authority, self.authority.pem())?;
        let encoded = Printed::by(Command::new("base64").arg("--wrap=0").arg(&authority))?.succeeded()?;
        let spec = json!({ "address": format!("{address}:{}", self.port), "audience": AUDIENCE, "caCert": encoded });
        let path = format!("{KIND}/{DRIVER}");
        let object = json!({
            "apiVersion": "cbt.storage.k8s.io/v1beta1", "kind": "SnapshotMetadataService",
            "metadata": { "name": DRIVER }, "spec": spec,
        });
        match cluster.ask("GET", &path, None) {
            Ok(_) => cluster.ask("PATCH", &path, Some(&object)),
            Err(_) => cluster.ask("POST", KIND, Some(&object)),
        }?;
        Ok(())
    }

    /// Creates the pods of the agents, as their kubelets would report them, and waits until the Service leads to them.
    pub fn lead_to_agents(&self, cluster: &Cluster) -> Result<()> {
        let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        for (agent, address) in cluster.agents.iter().zip(AGENTS) {
            let mut made = pod(&agent.node, &cluster.namespace, &[]);
            made["metadata"]["labels"] = json!({ "app.kubernetes.io/name": "bulkhead" });
            made["spec"]["nodeName"] = json!(agent.node);
            made["spec"]["containers"][0]["ports"] = json!([{ "name": "changed-blocks", "containerPort": self.port }]);
            cluster.ask("POST", &pods, Some(&made))?;
            let ready = json!([{ "type": "Ready", "status": "True" }]);
            let addresses = json!([{ "ip": address }]);
            let status = json!({ "phase": "Running", "podIP": address, "podIPs": addresses, "conditions": ready });
            cluster.ask("PATCH", &format!("{pods}/{}/status", agent.node), Some(&json!({ "status": status })))?;
        }
        let slices = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{SERVICE}"
        );
        cluster.access.wait(PATIENCE, "the Service to lead to the agents", || {
            let found = cluster.ask("GET", &slices, None)?.to_string();
            ensure!(AGENTS.iter().all(|address| found.contains(&format!("\"{address}\""))), "it leads to {found}");
            Ok(())
        })
    }

    /// Makes a new authority, and has it sign a new certificate.
    pub fn renew(&mut self) -> Result<()> {
        self.authority = authority()?;
        self.certify()
    }

    fn certify(&self) -> Result<()> {
        let mut names = AGENTS.map(str::to_owned).to_vec();
        names.push(format!("{SERVICE}.{NAMESPACE}.svc"));
        let mut params = CertificateParams::new(names)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.authority)?;
        for (name, text) in [("tls.key", key.serialize_pem()), ("tls.crt", certificate.pem())] {
            fs::write(self.directory.path().join(name), text)?;
        }
        Ok(())
    }
}

/// The manifest of what the agents need.
fn objects() -> String {
    manifests::path("snapshot-metadata/objects.yaml")
}

fn authority() -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

impl Cluster {
    /// Creates an account in the test's namespace, and lets it read VolumeSnapshots there if `reads`.
    pub fn add_account(&self, name: &str, reads: bool) -> Result<()> {
        let namespaced = |api: &str, kind: &str| format!("{api}/namespaces/{}/{kind}", self.namespace);
        let account = json!({ "metadata": { "name": name } });
        self.ask("POST", &namespaced("/api/v1", "serviceaccounts"), Some(&account))?;
        if !reads {
            return Ok(());
        }
        let resources = ["volumesnapshots"];
        let rule = json!({ "apiGroups": ["snapshot.storage.k8s.io"], "resources": resources, "verbs": ["get"] });
        let role = json!({ "metadata": { "name": name }, "rules": [rule] });
        let binding = json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": self.namespace }],
        });
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        self.ask("POST", &namespaced(rbac, "roles"), Some(&role))?;
        self.ask("POST", &namespaced(rbac, "rolebindings"), Some(&binding)).map(drop)
    }

    /// A token of an account of the test's namespace for this audience, or for the API server.
    pub fn account_token(&self, name: &str, audience: Option<&str>) -> Result<String> {
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{name}/token", self.namespace);
        let audiences: Vec<_> = audience.into_iter().collect();
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": { "audiences": audiences },
        });
        let answer = self.ask("POST", &path, Some(&request))?;
        Ok(answer["status"]["token"].as_str().context("an answer without a token")?.to_owned())
    }
}
