//! Programs that check what is deployed, that it is compared with, or that it works with: each is built once from its Go
//! module, into a cache of the user.

use std::path::PathBuf;

use anyhow::{Context, Result};
use fs_err as fs;

use crate::cache;
use crate::checksum::sha256;
use crate::go::{STRIPPED, build, go, version};
use crate::process::{capture, run};
use crate::progress::timed;
use crate::workspace::Workspace;

/// A program and where it comes from.
pub struct GoTool {
    /// Our module, below tests, which pins the version.
    module: &'static str,
    /// The package, which has the program's name.
    package: &'static str,
    /// Build tags.
    tags: &'static str,
}

/// helm, which checks the chart.
pub const HELM: GoTool = GoTool::of("helm", "helm.sh/helm/v3/cmd/helm");

/// A registry, to which a release is pushed.
pub const REGISTRY: GoTool = GoTool::of("registry", "github.com/distribution/distribution/v3/cmd/registry");

/// promtool, which checks metrics and alerts.
pub const PROMTOOL: GoTool =
    GoTool { tags: PROMETHEUS.tags, ..GoTool::of("prometheus", "github.com/prometheus/prometheus/cmd/promtool") };

/// Prometheus, which scrapes an agent. It needs none of the mechanisms for discovering targets, which make up most of
/// its dependencies.
pub const PROMETHEUS: GoTool =
    GoTool { tags: "remove_all_sd", ..GoTool::of("prometheus", "github.com/prometheus/prometheus/cmd/prometheus") };

/// local-path-provisioner, which the storage agent is compared with.
pub const LOCAL_PATH: GoTool = GoTool::of("local-path", "github.com/rancher/local-path-provisioner");

/// The snapshot controller, which turns users' VolumeSnapshots into the objects that agents handle.
const SNAPSHOT_CONTROLLER: GoTool =
    GoTool::of("snapshot-controller", "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller");

/// The module with the definitions of its resources.
const SNAPSHOT_RESOURCES: &str = "github.com/kubernetes-csi/external-snapshotter/client/v8";

/// csi-provisioner, which makes the volumes of a CSI driver that the storage agent is compared with.
pub const CSI_PROVISIONER: GoTool =
    GoTool::of("external-provisioner", "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner");

/// csi-snapshotter, which has that driver's snapshots taken.
pub const CSI_SNAPSHOTTER: GoTool =
    GoTool::of("snapshot-controller", "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter");

/// Our module with the client for changed blocks: the flags are ours, the rest is the reference client.
const CHANGED_BLOCKS: &str = "snapshot-metadata";

/// The module with the definition of its resource.
const CHANGED_BLOCKS_RESOURCES: &str = "github.com/kubernetes-csi/external-snapshot-metadata/client";

/// The variables that tell a suite where the snapshot controller is, and the definitions of its resources.
pub fn for_snapshots(workspace: &Workspace) -> Result<[(String, PathBuf); 2]> {
    let resources = module(workspace, SNAPSHOT_CONTROLLER.module, SNAPSHOT_RESOURCES)?.join("config/crd");
    Ok([SNAPSHOT_CONTROLLER.variable(workspace)?, ("BULKHEAD_SNAPSHOT_RESOURCES".to_owned(), resources)])
}

/// Likewise for the client that asks for changed blocks.
pub fn for_changed_blocks(workspace: &Workspace) -> Result<[(&'static str, PathBuf); 2]> {
    let client = ours(workspace, CHANGED_BLOCKS, "changed-blocks")?;
    let resources = module(workspace, CHANGED_BLOCKS, CHANGED_BLOCKS_RESOURCES)?.join("config/crd");
    Ok([("BULKHEAD_CHANGED_BLOCKS_CLIENT", client), ("BULKHEAD_CHANGED_BLOCKS_RESOURCES", resources)])
}

/// The test suite of the CSI community, in a program of ours. The program that runs it in the machine looks for this name in
/// its own directory.
pub fn csi_sanity(workspace: &Workspace) -> Result<PathBuf> {
    ours(workspace, "sanity", "bulkhead-csi-sanity")
}

/// Builds a program of ours from its module, unless the cache has it of the same source, and returns its path.
fn ours(workspace: &Workspace, module: &str, name: &str) -> Result<PathBuf> {
    let source = workspace.root.join("tests").join(module);
    let read = |name| fs::read(source.join(name));
    let content = [read("go.mod")?, read("go.sum")?, read("main.go")?].concat();
    let cache = cache::directory(name)?;
    cache::make_once(cache.join(sha256(&content)).join(name), |program| {
        let mut build = build(&cache, &["build"], STRIPPED)?;
        timed(format_args!("building {name} once: some minutes"), || {
            run(build.arg(program).arg(".").current_dir(&source))
        })
    })
}

/// The directory of a module's source, of the version that our module pins.
fn module(workspace: &Workspace, ours: &str, module: &str) -> Result<PathBuf> {
    let cache = cache::directory("modules")?;
    let go = |arguments: &[&str]| -> Result<String> {
        capture(go(&cache)?.args(arguments).arg(module).current_dir(workspace.root.join("tests").join(ours)))
    };
    go(&["mod", "download"])?;
    Ok(PathBuf::from(go(&["list", "-m", "-f", "{{.Dir}}"])?.trim()))
}

impl GoTool {
    /// The program of a package, in the version that a module of ours pins.
    const fn of(module: &'static str, package: &'static str) -> Self {
        GoTool { module, package, tags: "" }
    }

    /// The program's name.
    pub fn name(&self) -> &'static str {
        self.package.rsplit('/').next().unwrap_or(self.package)
    }

    /// The variable that tells a suite where the program is, and its path.
    pub fn variable(&self, workspace: &Workspace) -> Result<(String, PathBuf)> {
        let name = self.name().to_uppercase().replace('-', "_");
        Ok((format!("BULKHEAD_{name}"), self.provide(workspace)?))
    }

    /// Builds the program unless it is in the cache, and returns its path.
    pub fn provide(&self, workspace: &Workspace) -> Result<PathBuf> {
        let (name, Self { module, package, tags }) = (self.name(), self);
        let source = workspace.root.join("tests").join(module);
        let text = fs::read_to_string(source.join("go.mod"))?;
        let version = version(&text, package).with_context(|| format!("tests/{module} does not pin {package}"))?;
        let cache = cache::directory(name)?;
        cache::make_once(cache.join(format!("{name}-{version}")), |program| {
            let mut build = build(&cache, &["build"], STRIPPED)?;
            build.arg(program).args(["-tags", tags, package]).current_dir(source);
            timed(format_args!("building {name} {version} once: some minutes"), || run(&mut build))
        })
    }
}
