//! A registry on this host that has the release to be tested, and the node's way to it.

use std::env;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tempfile::TempDir;

use super::{HOST, Node};
use crate::cluster::component::{Component, Traces};
use crate::commands::Printed;
use crate::documented::REPOSITORY;
use crate::pace::patience;
use crate::wait::until;

/// Where containerd looks for the ways to registries.
const WAYS: &str = "/etc/containerd/certs.d";

/// A registry with the release. It ends with this value.
#[derive(Debug)]
pub struct Registry {
    /// What the release calls it.
    name: String,
    /// The files of the release.
    pub release: PathBuf,
    /// The certificate of who vouches for it.
    authority: PathBuf,
    directory: TempDir,
    _server: Component,
}

impl Registry {
    /// Starts it, and pushes the release to it as whoever publishes one does.
    pub fn with_release(node: &Node) -> Result<Self> {
        let name = env::var("BULKHEAD_REGISTRY").context("BULKHEAD_REGISTRY names no registry")?;
        let credentials = node.control_plane.directory().join("pki");
        let directory = tempfile::Builder::new().prefix("bulkhead-registry-").tempdir()?;
        let address = name.split_once('/').and_then(|(host, _)| host.rsplit_once(':'));
        let port = address.context("a registry without a port or a path")?.1.to_owned();
        let address = format!("127.0.0.1:{port}");
        let configuration = json!({
            "version": 0.1,
            "log": { "level": "warn" },
            "storage": { "filesystem": { "rootdirectory": directory.path().join("content") } },
            "http": {
                "addr": address,
                "tls": { "certificate": credentials.join("server.crt"), "key": credentials.join("server.key") },
            },
        });
        // JSON is also YAML.
        let file = directory.path().join("configuration.yml");
        fs::write(&file, configuration.to_string())?;
        let flags = vec!["serve".to_owned(), file.to_string_lossy().into_owned()];
        let traces = Traces::new(directory.path(), "registry");
        let server = Component::start(traces, path_in("BULKHEAD_REGISTRY_PROGRAM")?, flags)?;
        until(patience(Duration::from_secs(30)), || Ok(TcpStream::connect(&address).map(drop)?))?;
        let authority = credentials.join("authority.crt");
        let registry = Self { name, release: path_in("BULKHEAD_RELEASE")?, authority, directory, _server: server };
        registry.push()?;
        registry.is_reached_by(node, &port)?;
        Ok(registry)
    }

    fn push(&self) -> Result<()> {
        let programs = self.directory.path().join("bin");
        fs::create_dir(&programs)?;
        // The file name of helm's program contains its version.
        std::os::unix::fs::symlink(path_in("BULKHEAD_HELM")?, programs.join("helm"))?;
        let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
        let mut push = Command::new(format!("{REPOSITORY}/.github/publish.sh"));
        push.arg(&self.release).arg(&self.name).env("PATH", path).env("SSL_CERT_FILE", &self.authority);
        Printed::by(&mut push)?.succeeded().map(drop)
    }

    /// The node finds this host elsewhere than under the name that is in the release.
    fn is_reached_by(&self, node: &Node, port: &str) -> Result<()> {
        let directory = format!("{WAYS}/localhost:{port}");
        node.machine.run(&format!("mkdir -p {directory}"))?;
        node.machine.write(&format!("{directory}/authority.crt"), &fs::read_to_string(&self.authority)?)?;
        let way = format!("https://{HOST}:{port}");
        let hosts = format!("server = \"{way}\"\n[host.\"{way}\"]\n  ca = \"{directory}/authority.crt\"\n");
        node.machine.write(&format!("{directory}/hosts.toml"), &hosts)
    }

    /// A page's commands, with the registry and the version for the words that stand for them.
    pub fn fill_in(&self, commands: &str) -> String {
        let filled = commands.replace("REGISTRY", &self.name).replace("VERSION", env!("CARGO_PKG_VERSION"));
        format!("export SSL_CERT_FILE={}\n{filled}", self.authority.display())
    }
}

fn path_in(variable: &str) -> Result<PathBuf> {
    env::var_os(variable).map(PathBuf::from).with_context(|| format!("{variable} names no file"))
}
