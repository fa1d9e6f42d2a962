//! A control plane on which a test installs the chart: on the one that tests share, all its names are taken.

use std::fs;

use anyhow::{Context, Result};
use bulkhead_tests::cluster::access::Access;
use bulkhead_tests::cluster::control_plane::{ControlPlane, assets};
use bulkhead_tests::cluster::objects::volume;
use bulkhead_tests::commands::Printed;
use bulkhead_tests::node::Kubectl;
use serde_json::{Value, json};

use super::{NAMESPACE, chart, disk, helm_command, run};

/// What helm's commands begin with.
const RELEASE: [&str; 3] = ["bulkhead", "--namespace", NAMESPACE];

/// A control plane with a release of the chart, or one that is about to have it. Unless values say otherwise, its pool is
/// that of the manifests.
pub struct Released {
    /// Access to its API server.
    pub access: Access,
    /// kubectl for it.
    pub kubectl: Kubectl,
    _control_plane: ControlPlane,
}

impl Released {
    /// Starts a control plane.
    pub fn nowhere() -> Result<Self> {
        let control_plane = ControlPlane::start()?;
        let access = control_plane.access()?;
        let kubectl = Kubectl { program: assets()?.join("kubectl"), kubeconfig: access.kubeconfig() };
        Ok(Self { access, kubectl, _control_plane: control_plane })
    }

    /// Starts a control plane and installs the chart.
    pub fn installed() -> Result<Self> {
        let released = Self::nowhere()?;
        released.apply("install", &["--create-namespace"], &json!({}))?.succeeded()?;
        Ok(released)
    }

    /// Upgrades the release to the chart with these values, and otherwise those it was installed with.
    pub fn upgrade(&self, values: &Value) -> Result<Printed> {
        // Without any values, helm would take the former ones.
        self.apply("upgrade", &["--reset-values"], values)
    }

    /// Installs or upgrades the release.
    pub fn apply(&self, command: &str, flags: &[&str], values: &Value) -> Result<Printed> {
        let scratch = tempfile::tempdir()?;
        let file = scratch.path().join("values.json");
        let mut all = json!({ "pools": disk() });
        if let (Some(all), Some(values)) = (all.as_object_mut(), values.as_object()) {
            all.extend(values.clone());
        }
        fs::write(&file, all.to_string())?;
        let (chart, file) = (chart(), file.to_string_lossy());
        self.helm(command, &[[chart.as_str(), "--values", &file].as_slice(), flags].concat())
    }

    /// Runs a command of helm on the release.
    pub fn helm(&self, command: &str, arguments: &[&str]) -> Result<Printed> {
        let mut helm = helm_command()?;
        helm.args(command.split(' ')).args(RELEASE).args(arguments);
        run(helm.arg("--kubeconfig").arg(&self.kubectl.kubeconfig))
    }

    /// Makes the object `kept` of a volume of the driver.
    pub fn keep_a_volume(&self) -> Result<()> {
        let mut kept = volume("kept", "kept", "bulkhead", "1Gi", "node");
        kept["apiVersion"] = json!("v1");
        kept["kind"] = json!("PersistentVolume");
        kept["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        self.kubectl.apply(&kept.to_string())
    }

    /// Checks that every object of the release is in the cluster as helm believes.
    pub fn check_complete(&self) -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let file = scratch.path().join("objects.yaml");
        fs::write(&file, self.helm("get manifest", &[])?.succeeded()?)?;
        let mut differ = self.kubectl.command(&["diff", "--filename", &file.to_string_lossy()]);
        Printed::by(&mut differ)?.succeeded().map(drop)
    }

    /// One of the release's objects.
    pub fn get(&self, kind: &str, name: &str) -> Result<Value> {
        self.kubectl.get(&["--namespace", NAMESPACE, kind, name])
    }

    /// The helper's flags, as the pods would find them.
    pub fn flags(&self) -> Result<String> {
        let config = self.get("configmap", "bulkhead-privhelper")?;
        Ok(config["data"]["privhelper.conf"].as_str().context("no flags")?.to_owned())
    }

    /// The pods' template.
    pub fn template(&self) -> Result<Value> {
        Ok(self.get("daemonset", "bulkhead")?["spec"]["template"].take())
    }
}
