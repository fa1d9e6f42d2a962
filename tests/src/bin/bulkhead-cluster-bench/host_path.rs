//! csi-driver-host-path, with the two sidecars of Kubernetes that make its volumes and have its snapshots taken.
//!
//! They run as its own manifests start them, without the sidecars for what is not compared. Its program is the user's: only
//! the sidecars are built with the bench.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use bulkhead_tests::cluster::audit::SIDECARS;
use bulkhead_tests::cluster::component::{Component, Traces};
use bulkhead_tests::cluster::control_plane::ControlPlane;
use bulkhead_tests::cluster::{Cluster, PATIENCE};
use bulkhead_tests::observe::mounts;
use bulkhead_tests::pool::Pool;
use bulkhead_tests::run_options::{PoolFilesystem, RunOptions};
use bulkhead_tests::wait;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::driver::{Driver, POOL_MEBIBYTES};

const NAME: &str = "host-path";
const PLUGIN: &str = "hostpathplugin";
const DRIVER: &str = "hostpath.csi.k8s.io";
const TOPOLOGY_KEY: &str = "topology.hostpath.csi/node";

/// Name the programs of the sidecars.
const PROGRAMS: [&str; 2] = ["BULKHEAD_CSI_PROVISIONER", "BULKHEAD_CSI_SNAPSHOTTER"];

/// Their own flags.
const FLAGS: [&[&str]; 2] = [&["--feature-gates=Topology=true"], &[]];

/// Its processes, which end with this value.
pub struct HostPath {
    components: Vec<Component>,
    filesystem: Pool,
}

impl HostPath {
    /// Starts it on the first agent's node.
    pub fn start(
        cluster: &mut Cluster,
        control_plane: &ControlPlane,
        program: &Path,
        work: &Path,
        templates: &Path,
    ) -> Result<(Self, Driver)> {
        let mut run_options = RunOptions::on_host(PoolFilesystem::Xfs);
        run_options.pool_mebibytes = POOL_MEBIBYTES;
        let directory = work.join("pools").join(NAME);
        fs::create_dir_all(&directory)?;
        let filesystem = Pool::make_unmarked(&run_options, templates, &directory, NAME)?;
        let mut all = Self { components: Vec::new(), filesystem };
        let (node, state, socket) = (cluster.node(), directory.join("state"), work.join("host-path.sock"));
        let endpoint = format!("unix://{}", socket.display());
        let flags = [
            format!("--drivername={DRIVER}"),
            format!("--endpoint={endpoint}"),
            format!("--nodeid={node}"),
            format!("--statedir={}", state.display()),
        ];
        let mut processes = vec![all.run(control_plane, PLUGIN, program.to_owned(), flags.into())?];
        wait::until(PATIENCE, || {
            ensure!(socket.exists(), "{} does not serve", program.display());
            Ok(())
        })?;
        register(cluster, &node)?;
        for ((user, program), own) in SIDECARS.into_iter().zip(PROGRAMS).zip(FLAGS) {
            let kubeconfig = control_plane.directory().join(format!("{user}.kubeconfig"));
            fs::write(&kubeconfig, control_plane.kubeconfig(user, Some("system:masters"))?)?;
            let program = std::env::var_os(program).with_context(|| format!("${program} does not name {user}"))?;
            let mut flags = vec![
                format!("--csi-address={}", socket.display()),
                format!("--kubeconfig={}", kubeconfig.display()),
                // With their default of five requests a second they would be the bottleneck.
                "--kube-api-qps=1000".to_owned(),
                "--kube-api-burst=2000".to_owned(),
            ];
            flags.extend(own.iter().map(|flag| (*flag).to_owned()));
            processes.push(all.run(control_plane, user, PathBuf::from(program), flags)?);
        }
        let class = cluster.add_class(|class| class["provisioner"] = json!(DRIVER))?;
        let snapshot_class = cluster.add_snapshot_class(NAME, |class| class["driver"] = json!(DRIVER))?;
        let users = SIDECARS.map(str::to_owned).into();
        let file = |state: &Path, handle: &str| state.join(handle);
        Ok((all, Driver { name: NAME, class, snapshot_class, users, processes, directory: state, file }))
    }

    /// Starts a program, and returns its process id.
    fn run(
        &mut self,
        control_plane: &ControlPlane,
        name: &'static str,
        program: PathBuf,
        flags: Vec<String>,
    ) -> Result<u32> {
        let traces = Traces::new(control_plane.directory(), name);
        self.components.push(Component::start(traces.clone(), program, flags)?);
        wait::until(PATIENCE, || traces.pid().map(drop))?;
        traces.pid()
    }

    /// Ends it, and removes its filesystem.
    pub fn end(self) -> Result<()> {
        drop(self.components);
        mounts::unmount_all(&self.filesystem.directory)
    }
}

/// Tells the API server that the driver runs on a node, as the kubelet would.
fn register(cluster: &Cluster, node: &str) -> Result<()> {
    let labels = json!({ "metadata": { "labels": { TOPOLOGY_KEY: node } } });
    let nodes: Api<Node> = Api::all(cluster.access.client());
    cluster.access.run(nodes.patch(node, &PatchParams::default(), &Patch::Merge(labels)))?;
    let driver = json!({ "name": DRIVER, "nodeID": node, "topologyKeys": [TOPOLOGY_KEY] });
    let drivers = json!({ "spec": { "drivers": [driver] } });
    let registered: Api<CSINode> = Api::all(cluster.access.client());
    cluster.access.run(registered.patch(node, &PatchParams::default(), &Patch::Strategic(drivers)))?;
    Ok(())
}
