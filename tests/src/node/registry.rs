//! The release to be tested, a registry on this host to which it can be pushed, and the node's way to that.

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

/// The files of a release.
#[derive(Debug)]
pub struct Release {
    /// Where they are.
    pub directory: PathBuf,
    /// The registry that the chart and the manifests name.
    registry: String,
}

impl Release {
    /// The one that this run was given.
    pub fn given() -> Result<Self> {
        let registry = env::var("BULKHEAD_REGISTRY_ADDRESS").context("BULKHEAD_REGISTRY_ADDRESS names no registry")?;
        Ok(Self { directory: path_in("BULKHEAD_RELEASE")?, registry })
    }

    /// The manifest of all that it installs.
    pub fn manifest(&self) -> PathBuf {
        self.directory.join("bulkhead.yaml")
    }

    /// A page's commands, with the registry and the version for the words that stand for them.
    pub fn fill_in(&self, commands: &str) -> String {
        commands.replace("REGISTRY", &self.registry).replace("VERSION", env!("CARGO_PKG_VERSION"))
    }

    /// The host and the port of its registry.
    fn address(&self) -> Result<(&str, &str)> {
        let address = self.registry.split_once('/').and_then(|(address, _)| address.rsplit_once(':'));
        address.context("a registry without a port or a path")
    }
}

/// A registry. It ends with this value.
#[derive(Debug)]
pub struct Registry<'a> {
    release: &'a Release,
    /// The certificate of who vouches for it.
    authority: PathBuf,
    // It ends before its directory does.
    _server: Component,
    directory: TempDir,
}

impl<'a> Registry<'a> {
    /// Starts the one that the release names, and pushes the release to it as whoever publishes one does.
    pub fn with_release(node: &Node, release: &'a Release) -> Result<Self> {
        let registry = Self::empty(node, release)?;
        registry.push()?;
        Ok(registry)
    }

    /// Starts it, with nothing in it.
    pub fn empty(node: &Node, release: &'a Release) -> Result<Self> {
        let credentials = node.control_plane.directory().join("pki");
        let directory = tempfile::Builder::new().prefix("bulkhead-registry-").tempdir()?;
        let (_, port) = release.address()?;
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
        let server = Component::start(traces, path_in("BULKHEAD_REGISTRY")?, flags)?;
        until(patience(Duration::from_secs(30)), || Ok(TcpStream::connect(&address).map(drop)?))?;
        let authority = credentials.join("authority.crt");
        let registry = Self { release, authority, directory, _server: server };
        registry.is_reached_by(node, port)?;
        Ok(registry)
    }

    fn push(&self) -> Result<()> {
        let programs = self.directory.path().join("bin");
        fs::create_dir(&programs)?;
        // The file name of helm's program contains its version.
        std::os::unix::fs::symlink(path_in("BULKHEAD_HELM")?, programs.join("helm"))?;
        let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap_or_default());
        let mut push = Command::new(format!("{REPOSITORY}/.github/publish.sh"));
        push.arg(&self.release.directory)
            .arg(&self.release.registry)
            .env("PATH", path)
            .env("SSL_CERT_FILE", &self.authority);
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

    /// What it calls a part of it that is none of the release's.
    pub fn mirror(&self) -> Result<String> {
        let (host, port) = self.release.address()?;
        Ok(format!("{host}:{port}/mirror"))
    }

    /// A page's commands for whoever trusts it, filled in.
    pub fn fill_in(&self, commands: &str) -> String {
        format!("export SSL_CERT_FILE={}\n{}", self.authority.display(), self.release.fill_in(commands))
    }
}

fn path_in(variable: &str) -> Result<PathBuf> {
    env::var_os(variable).map(PathBuf::from).with_context(|| format!("{variable} names no file"))
}
