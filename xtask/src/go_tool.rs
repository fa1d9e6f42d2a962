//! Programs that check what is deployed, that it is compared with, or that it works with: each is built once from its Go
//! module, into a cache of the user.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::cache;
use crate::go::go;
use crate::process::{capture, run};
use crate::progress::timed;
use crate::workspace::Workspace;

/// A program and where it comes from.
pub struct GoTool {
    /// Its name.
    name: &'static str,
    /// The environment variable that tells a suite where the program is.
    pub variable: &'static str,
    /// Our module, which pins the version.
    pinned_in: &'static str,
    /// The module that contains it.
    module: &'static str,
    /// The package within that module.
    package: &'static str,
    /// Build tags.
    tags: &'static str,
}

/// helm, which checks the chart.
pub const HELM: GoTool = GoTool {
    name: "helm",
    variable: "BULKHEAD_HELM",
    pinned_in: "tests/helm",
    module: "helm.sh/helm/v3",
    package: "helm.sh/helm/v3/cmd/helm",
    tags: "",
};

/// promtool, which checks metrics and alerts.
pub const PROMTOOL: GoTool = GoTool {
    name: "promtool",
    variable: "BULKHEAD_PROMTOOL",
    package: "github.com/prometheus/prometheus/cmd/promtool",
    ..PROMETHEUS
};

/// Prometheus, which scrapes an agent. It needs none of the mechanisms for discovering targets, which make up most of
/// its dependencies.
pub const PROMETHEUS: GoTool = GoTool {
    name: "prometheus",
    variable: "BULKHEAD_PROMETHEUS",
    pinned_in: "tests/prometheus",
    module: "github.com/prometheus/prometheus",
    package: "github.com/prometheus/prometheus/cmd/prometheus",
    tags: "remove_all_sd",
};

/// local-path-provisioner, which the storage agent is compared with.
pub const LOCAL_PATH: GoTool = GoTool {
    name: "local-path-provisioner",
    variable: "BULKHEAD_LOCAL_PATH",
    pinned_in: "tests/local-path",
    module: "github.com/rancher/local-path-provisioner",
    package: "github.com/rancher/local-path-provisioner",
    tags: "",
};

/// The snapshot controller, which turns users' VolumeSnapshots into the objects that agents handle.
pub const SNAPSHOT_CONTROLLER: GoTool = GoTool {
    name: "snapshot-controller",
    variable: "BULKHEAD_SNAPSHOT_CONTROLLER",
    pinned_in: "tests/snapshot-controller",
    module: "github.com/kubernetes-csi/external-snapshotter/v8",
    package: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller",
    tags: "",
};

/// csi-provisioner, which makes the volumes of a CSI driver that the storage agent is compared with.
pub const CSI_PROVISIONER: GoTool = GoTool {
    name: "csi-provisioner",
    variable: "BULKHEAD_CSI_PROVISIONER",
    pinned_in: "tests/external-provisioner",
    module: "github.com/kubernetes-csi/external-provisioner/v6",
    package: "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner",
    tags: "",
};

/// csi-snapshotter, which has that driver's snapshots taken.
pub const CSI_SNAPSHOTTER: GoTool = GoTool {
    name: "csi-snapshotter",
    variable: "BULKHEAD_CSI_SNAPSHOTTER",
    package: "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
    ..SNAPSHOT_CONTROLLER
};

/// The definitions of the snapshot controller's resources.
pub const SNAPSHOT_RESOURCES: GoFiles = GoFiles {
    variable: "BULKHEAD_SNAPSHOT_RESOURCES",
    pinned_in: "tests/snapshot-controller",
    module: "github.com/kubernetes-csi/external-snapshotter/client/v8",
    directory: "config/crd",
};

/// Files of a Go module that are used as they are.
pub struct GoFiles {
    /// The environment variable that tells a suite where the files are.
    pub variable: &'static str,
    /// Our module, which pins the version.
    pinned_in: &'static str,
    /// The module that contains them.
    module: &'static str,
    /// Their directory within that module.
    directory: &'static str,
}

impl GoFiles {
    /// The directory of the files, which are fetched unless they have been.
    pub fn provide(&self, workspace: &Workspace) -> Result<PathBuf> {
        let cache = cache::directory(SNAPSHOT_CONTROLLER.name)?;
        fs::create_dir_all(&cache)?;
        let go = |arguments: &[&str]| -> Result<String> {
            let mut go = go(&cache)?;
            capture(go.args(arguments).arg(self.module).current_dir(workspace.root.join(self.pinned_in)))
        };
        go(&["mod", "download"])?;
        let module = go(&["list", "-m", "-f", "{{.Dir}}"])?;
        Ok(PathBuf::from(module.trim()).join(self.directory))
    }
}

impl GoTool {
    /// Builds the program unless it is in the cache, and returns its path.
    pub fn provide(&self, workspace: &Workspace) -> Result<PathBuf> {
        let Self { name, module, .. } = self;
        let source = workspace.root.join(self.pinned_in);
        let text =
            fs::read_to_string(source.join("go.mod")).with_context(|| format!("read the Go module of {name}"))?;
        let version = version(&text, module).with_context(|| format!("{} does not pin {module}", self.pinned_in))?;
        let cache = cache::directory(name)?;
        fs::create_dir_all(&cache)?;
        let program = cache.join(format!("{name}-{version}"));
        let _lock = cache::lock(&cache, version)?;
        if program.exists() {
            return Ok(program);
        }
        // Only a complete program gets the final name.
        let unfinished = program.with_extension("unfinished");
        let mut build = go(&cache)?;
        build.args(["build", "-trimpath", "-buildvcs=false", "-p", "2", "-ldflags", "-s -w", "-o"]).arg(&unfinished);
        build.args(["-tags", self.tags, self.package]).current_dir(&source);
        timed(format_args!("building {name} {version} once: some minutes"), || run(&mut build))?;
        fs::rename(&unfinished, &program).with_context(|| format!("install {}", program.display()))?;
        Ok(program)
    }
}

/// The version of `module` that a go.mod requires.
fn version<'a>(text: &'a str, module: &str) -> Option<&'a str> {
    let mut required = text.lines().filter_map(|line| line.trim().strip_prefix(module)?.strip_prefix(' '));
    required.next()?.split(' ').next()
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn a_module_says_which_version_it_requires() {
        let text = "require (\n\texample.org/a/b v1.0.0\n\texample.org/a v2.0.0 // indirect\n)\n";
        assert_eq!(version(text, "example.org/a"), Some("v2.0.0"));
        assert_eq!(version(text, "example.org"), None);
    }
}
