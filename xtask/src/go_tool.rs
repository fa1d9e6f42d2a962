//! Programs that check what is deployed, that it is compared with, or that it works with: each is built once from its Go
//! module, into a cache of the user.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fs_err as fs;

use crate::cache;
use crate::checksum::sha256;
use crate::go::{go, version};
use crate::process::{capture, run};
use crate::progress::timed;
use crate::workspace::Workspace;

/// A program and where it comes from.
pub struct GoTool {
    /// The environment variable that tells a suite where the program is.
    pub variable: &'static str,
    /// Our module, which pins the version.
    pinned_in: &'static str,
    /// The package, which has the program's name.
    package: &'static str,
    /// Build tags.
    tags: &'static str,
}

/// helm, which checks the chart.
pub const HELM: GoTool =
    GoTool { variable: "BULKHEAD_HELM", pinned_in: "tests/helm", package: "helm.sh/helm/v3/cmd/helm", tags: "" };

/// A registry, to which a release is pushed.
pub const REGISTRY: GoTool = GoTool {
    variable: "BULKHEAD_REGISTRY_PROGRAM",
    pinned_in: "tests/registry",
    package: "github.com/distribution/distribution/v3/cmd/registry",
    tags: "",
};

/// promtool, which checks metrics and alerts.
pub const PROMTOOL: GoTool =
    GoTool { variable: "BULKHEAD_PROMTOOL", package: "github.com/prometheus/prometheus/cmd/promtool", ..PROMETHEUS };

/// Prometheus, which scrapes an agent. It needs none of the mechanisms for discovering targets, which make up most of
/// its dependencies.
pub const PROMETHEUS: GoTool = GoTool {
    variable: "BULKHEAD_PROMETHEUS",
    pinned_in: "tests/prometheus",
    package: "github.com/prometheus/prometheus/cmd/prometheus",
    tags: "remove_all_sd",
};

/// local-path-provisioner, which the storage agent is compared with.
pub const LOCAL_PATH: GoTool = GoTool {
    variable: "BULKHEAD_LOCAL_PATH",
    pinned_in: "tests/local-path",
    package: "github.com/rancher/local-path-provisioner",
    tags: "",
};

/// The snapshot controller, which turns users' VolumeSnapshots into the objects that agents handle.
const SNAPSHOT_CONTROLLER: GoTool = GoTool {
    variable: "BULKHEAD_SNAPSHOT_CONTROLLER",
    pinned_in: "tests/snapshot-controller",
    package: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
    tags: "",
};

/// The module with the definitions of its resources.
const SNAPSHOT_RESOURCES: &str = "github.com/kubernetes-csi/external-snapshotter/client/v8";

/// csi-provisioner, which makes the volumes of a CSI driver that the storage agent is compared with.
pub const CSI_PROVISIONER: GoTool = GoTool {
    variable: "BULKHEAD_CSI_PROVISIONER",
    pinned_in: "tests/external-provisioner",
    package: "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
    tags: "",
};

/// csi-snapshotter, which has that driver's snapshots taken.
pub const CSI_SNAPSHOTTER: GoTool = GoTool {
    variable: "BULKHEAD_CSI_SNAPSHOTTER",
    package: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
    ..SNAPSHOT_CONTROLLER
};

/// Our module with the client for changed blocks: the flags are ours, the rest is the reference client.
const CHANGED_BLOCKS: &str = "tests/snapshot-metadata";

/// The module with the definition of its resource.
const CHANGED_BLOCKS_RESOURCES: &str = "github.com/kubernetes-csi/external-snapshot-metadata/client";

/// The variables that tell a suite where the snapshot controller is, and the definitions of its resources.
pub fn for_snapshots(workspace: &Workspace) -> Result<[(&'static str, PathBuf); 2]> {
    let GoTool { variable, pinned_in, .. } = SNAPSHOT_CONTROLLER;
    let controller = SNAPSHOT_CONTROLLER.provide(workspace)?;
    let module = module(workspace, pinned_in, SNAPSHOT_RESOURCES)?;
    Ok([(variable, controller), ("BULKHEAD_SNAPSHOT_RESOURCES", module.join("config/crd"))])
}

/// Likewise for the client that asks for changed blocks.
pub fn for_changed_blocks(workspace: &Workspace) -> Result<[(&'static str, PathBuf); 2]> {
    let source = workspace.root.join(CHANGED_BLOCKS);
    let read = |name| fs::read(source.join(name));
    let content = [read("go.mod")?, read("go.sum")?, read("main.go")?].concat();
    let cache = cache::directory("changed-blocks")?;
    let program = cache::make_once(cache.join(format!("client-{}", sha256(&content))), |program| {
        timed(format_args!("building the client for changed blocks once: some minutes"), || {
            run(build(&cache)?.arg(program).arg(".").current_dir(&source))
        })
    })?;
    let module = module(workspace, CHANGED_BLOCKS, CHANGED_BLOCKS_RESOURCES)?;
    Ok([("BULKHEAD_CHANGED_BLOCKS_CLIENT", program), ("BULKHEAD_CHANGED_BLOCKS_RESOURCES", module.join("config/crd"))])
}

/// The directory of a module's source, of the version that our module pins.
fn module(workspace: &Workspace, pinned_in: &str, module: &str) -> Result<PathBuf> {
    let cache = cache::directory("modules")?;
    let go = |arguments: &[&str]| -> Result<String> {
        capture(go(&cache)?.args(arguments).arg(module).current_dir(workspace.root.join(pinned_in)))
    };
    go(&["mod", "download"])?;
    Ok(PathBuf::from(go(&["list", "-m", "-f", "{{.Dir}}"])?.trim()))
}

/// A command that builds a program; it takes the program's place, and what to build.
fn build(cache: &Path) -> Result<Command> {
    let mut build = go(cache)?;
    build.args(["build", "-trimpath", "-buildvcs=false", "-p", "2", "-ldflags", "-s -w", "-o"]);
    Ok(build)
}

impl GoTool {
    /// The program's name.
    pub fn name(&self) -> &'static str {
        self.package.rsplit('/').next().unwrap_or(self.package)
    }

    /// Builds the program unless it is in the cache, and returns its path.
    pub fn provide(&self, workspace: &Workspace) -> Result<PathBuf> {
        let (name, Self { pinned_in, package, tags, .. }) = (self.name(), self);
        let module = workspace.root.join(pinned_in);
        let text = fs::read_to_string(module.join("go.mod"))?;
        let version = version(&text, package).with_context(|| format!("{pinned_in} does not pin {package}"))?;
        let cache = cache::directory(name)?;
        cache::make_once(cache.join(format!("{name}-{version}")), |program| {
            let mut build = build(&cache)?;
            build.arg(program).args(["-tags", tags, package]).current_dir(module);
            timed(format_args!("building {name} {version} once: some minutes"), || run(&mut build))
        })
    }
}
