//! The ways to run Bulkhead on a node, whose pool is configured for filesystems in images.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cluster::bytes;
use bulkhead_tests::commands::Printed;
use bulkhead_tests::node::{NAME, Node, eventually};
use serde_json::Value;
use tempfile::TempDir;

use crate::documented;
use crate::story::Story;

/// One of the ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deployment {
    /// A DaemonSet runs both programs.
    Container,
    /// A DaemonSet that the chart installs runs both programs.
    Chart,
    /// The helper is a systemd service, and a DaemonSet runs the frontend.
    HostService,
}

/// The namespace of the DaemonSet, and the DaemonSet.
pub const AGENT: [&str; 3] = ["--namespace=bulkhead-system", "daemonset", "bulkhead"];

impl Deployment {
    /// Its name, which is also that of its overlay.
    pub fn name(self) -> &'static str {
        match self {
            Self::Container => "container",
            Self::Chart => "chart",
            Self::HostService => "host-service",
        }
    }

    /// Installs it, and waits until the scheduler knows how much space the node has.
    pub fn install(self, node: &Node, deploy: &Path) -> Result<()> {
        self.apply(node, deploy)?;
        wait_until_ready(node)
    }

    /// Installs it, whether or not it can run.
    pub fn apply(self, node: &Node, deploy: &Path) -> Result<()> {
        match self {
            Self::Container => {}
            Self::Chart => return documented::helm_install(node, ""),
            Self::HostService => install_helper(node, deploy)?,
        }
        let own = own_manifests(deploy)?;
        for directory in [format!("overlays/{}", self.name()), "labels".to_owned(), "image-class".to_owned()] {
            let directory = own.path().join(directory);
            let directory = directory.to_str().context("the path of the manifests is not UTF-8")?;
            node.kubectl.run(&["apply", "--server-side", "--force-conflicts", "-k", directory])?;
        }
        Ok(())
    }

    /// Removes the programs from the node. The cluster's objects stay.
    pub fn remove(self, node: &Node) -> Result<()> {
        if self == Self::Chart {
            return documented::helm_uninstall(node);
        }
        // Otherwise the next deployment's helper starts while this one's still serves the pool.
        node.kubectl.delete(&[&AGENT[..], &["--cascade=foreground"]].concat())?;
        if self == Self::HostService {
            node.machine.run("systemctl disable --now bulkhead-privhelper.socket bulkhead-privhelper.service")?;
        }
        Ok(())
    }
}

/// Waits until the agent runs, is registered with the kubelet, and has published how much space there is.
pub fn wait_until_ready(node: &Node) -> Result<()> {
    let [namespace, kind, name] = AGENT;
    let status = format!("{kind}/{name}");
    node.kubectl.run(&[namespace, "rollout", "status", &status, "--timeout=240s"])?;
    eventually(|| {
        let registered = node.kubectl.get(&["csinode", NAME])?;
        ensure!(!registered["spec"]["drivers"].is_null(), "the kubelet has no driver registered");
        room(node).map(drop)
    })
}

/// The space on the node that the scheduler knows of, in bytes.
pub fn room(node: &Node) -> Result<u64> {
    let capacities = node.kubectl.get(&["csistoragecapacities", "--all-namespaces"])?;
    let capacities = capacities["items"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_class = |object: &&Value| object["storageClassName"] == "bulkhead";
    let object = capacities.iter().find(of_class).context("no capacity is published for the class")?;
    bytes(object["capacity"].as_str().unwrap_or_default())
}

/// The story's first check.
pub fn is_installed(story: &mut Story<'_>) -> Result<()> {
    let topology = story.node.kubectl.get(&["node", NAME])?["metadata"]["labels"]["bulkhead.csi.local/node"].clone();
    ensure!(topology == NAME, "the node's topology label is {topology}");
    Ok(())
}

/// A copy of the manifests in which the container's pool is configured for filesystems in images.
fn own_manifests(deploy: &Path) -> Result<TempDir> {
    let own = tempfile::tempdir()?;
    Printed::by(Command::new("cp").arg("-r").arg(deploy.join("kubernetes/.")).arg(own.path()))?.succeeded()?;
    let path = own.path().join("overlays/container/privhelper.conf");
    fs::write(&path, with_filesystems(&fs::read_to_string(&path)?)?)?;
    Ok(own)
}

/// A configuration of the helper with the lines that it has as comments, in place of the one that they replace.
fn with_filesystems(configuration: &str) -> Result<String> {
    let lines = configuration.lines().filter(|line| !line.starts_with("--pool "));
    let lines: Vec<_> = lines.map(|line| if line.starts_with("# --") { &line[2..] } else { line }).collect();
    let has = |flag: &str| lines.iter().any(|line| line.starts_with(flag));
    ensure!(has("--pool ") && has("--mounter-uid "), "nothing is there as a comment: {configuration}");
    Ok(lines.join("\n"))
}

/// Installs the helper as an operator would.
fn install_helper(node: &Node, deploy: &Path) -> Result<()> {
    let machine = &node.machine;
    machine.run(
        "ln -sf /opt/bulkhead/bin/bulkhead-* /usr/local/bin/ && \
         mkdir -p /etc/bulkhead /etc/sysusers.d /etc/systemd/system/bulkhead-privhelper.service.d",
    )?;
    for (source, target) in [
        ("systemd/bulkhead.sysusers", "/etc/sysusers.d/bulkhead.conf"),
        ("systemd/privhelper.conf", "/etc/bulkhead/privhelper.conf"),
        ("systemd/bulkhead-privhelper.socket", "/etc/systemd/system/bulkhead-privhelper.socket"),
        ("systemd/bulkhead-privhelper.service", "/etc/systemd/system/bulkhead-privhelper.service"),
        ("systemd/filesystems.conf", "/etc/systemd/system/bulkhead-privhelper.service.d/filesystems.conf"),
        ("udev/59-bulkhead.rules", "/etc/udev/rules.d/59-bulkhead.rules"),
    ] {
        let source = deploy.join(source);
        let text = fs::read_to_string(&source).with_context(|| format!("read {}", source.display()))?;
        let is_configuration = target.ends_with("/privhelper.conf");
        machine.write(target, &if is_configuration { with_filesystems(&text)? } else { text })?;
    }
    machine.run("systemd-sysusers && udevadm control --reload && systemctl daemon-reload")?;
    let started = machine.run("systemctl enable --now bulkhead-privhelper.socket bulkhead-privhelper.service");
    started.map(drop).with_context(|| {
        let log = machine.run("journalctl --unit 'bulkhead-privhelper*' --boot --no-pager --lines 20 --output cat");
        format!("the helper wrote {}", log.unwrap_or_else(|error| format!("{error:#}")))
    })
}
