//! The fixture for tests of agents: a namespace, nodes, and an agent on each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, from_value, json};
use tonic::codegen::http::Request;

use super::access::Access;
use super::agent::Agent;
use super::control_plane::{ControlPlane, START};
use super::{grant, manifests, network, node, objects, snapshots};
use crate::case::Case;
use crate::fixture::Fixture;
use crate::keeper::NODES;
use crate::run_options::RunOptions;

/// How long a controller may take to react on a loaded machine, with other tests running alongside.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Makes an agent's minutes seconds, for tests that wait for one to pass.
pub const HURRIED: &str = "--divide-intervals=10";

/// How old the claims' policy and its binding must be before agents rely on the policy.
const RELIED_ON: Duration = Duration::from_secs(10);

/// The policy that gives claims the label by which agents watch them, and its binding.
const CLAIMS_POLICY: [&str; 2] = [
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies/bulkhead-claims",
    "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings/bulkhead-claims",
];

/// A policy that restricts agents, and its binding, for an API server without mutating policies.
const AGENTS_POLICY: [&str; 2] = [
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/bulkhead-agent-volumes",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/bulkhead-agent-volumes",
];

/// A namespace of a shared control plane, and its own agents.
#[derive(Debug)]
pub struct Cluster {
    /// Access to the API server.
    pub access: Access,
    /// The test's namespace. Its classes and nodes are named after it.
    pub namespace: String,
    /// The agents, one for each node.
    pub agents: Vec<Agent>,
    /// A class whose claims wait for a node.
    pub class: String,
    classes: Vec<String>,
    nodes: usize,
    run_options: RunOptions,
    work: PathBuf,
    templates: PathBuf,
}

impl Fixture for Cluster {
    type Shared = ControlPlane;

    // A test waits several times, each time for as long as a loaded machine may need.
    const LIMIT: Duration = Duration::from_secs(300);

    // Tests spend most of their time waiting for controllers and backoffs.
    fn side_by_side(_: &RunOptions) -> usize {
        4
    }

    fn share(run_options: &mut RunOptions, _: usize) -> Result<ControlPlane> {
        network::enter()?;
        serve(run_options)
    }

    fn share_apart(run_options: &mut RunOptions) -> Result<Option<ControlPlane>> {
        serve(run_options).map(Some)
    }

    fn end(control_plane: ControlPlane, all_passed: bool) -> Result<()> {
        if !all_passed {
            println!("the control plane's logs are kept in {}", control_plane.keep().display());
        }
        Ok(())
    }

    fn set(case: &Case<Self>, run_options: &RunOptions, work: &Path, templates: &Path) -> Result<Self> {
        let mut cluster = Self::enter(run_options, work, templates)?;
        if case.starts() {
            cluster.class = cluster.add_class(|_| {})?;
            cluster.add_agent()?;
        }
        Ok(cluster)
    }

    fn leave(mut self) -> Result<()> {
        self.delete_everything()?;
        let mut finished = Ok(());
        for agent in std::mem::take(&mut self.agents) {
            let name = agent.node.clone();
            finished = finished.and(agent.rig.finish().with_context(|| format!("on node {name}")));
            // The test may already have deleted it.
            let _ = node::delete(&self.access, &name);
        }
        let classes: Api<StorageClass> = Api::all(self.access.client());
        for name in &self.classes {
            let _ = self.access.run(classes.delete(name, &DeleteParams::default()));
            grant::take_back(&self.access, name);
        }
        // Its namespace ends with the control plane: to delete one, controllers ask for each kind of object that there is.
        finished
    }
}

/// Starts a control plane with everything that agents need, and has tests use it.
fn serve(run_options: &mut RunOptions) -> Result<ControlPlane> {
    let mut control_plane = ControlPlane::launch()?;
    // This does not need the controllers, which are still starting, and the policies must be old enough for the agents.
    let kubeconfig = control_plane.access()?.kubeconfig();
    match run_options.older_kubernetes {
        true => manifests::apply(&kubeconfig, "base")?,
        false => manifests::apply_cluster_wide(&kubeconfig)?,
    }
    // Agents that start before the kinds are known look for them later.
    snapshots::define_resources(&kubeconfig)?;
    control_plane.run_snapshot_controller()?;
    control_plane.wait_for_controllers()?;
    run_options.control_plane = Some(control_plane.directory().to_owned());
    Ok(control_plane)
}

impl Cluster {
    /// Creates a namespace named after `work`, the directory for all of the test's files.
    pub fn enter(run_options: &RunOptions, work: &Path, templates: &Path) -> Result<Self> {
        let directory = run_options.control_plane.as_ref().context("the run has no control plane")?;
        let access = Access::of(directory)?;
        // A failed test may have left a component stopped. Tests that stop components run alone.
        for name in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "snapshot-controller"] {
            access.component(name).release();
        }
        access.wait_until_ready(START)?;
        let name = work.file_name().context("a work directory without a name")?.to_string_lossy();
        let cluster = Self {
            access,
            namespace: format!("test-{name}"),
            agents: Vec::new(),
            class: String::new(),
            classes: Vec::new(),
            nodes: 0,
            run_options: run_options.clone(),
            work: work.to_owned(),
            templates: templates.to_owned(),
        };
        cluster.make_namespace()?;
        Ok(cluster)
    }

    /// Returns whether the API server labels claims and volumes with their node, and knows all fields.
    pub fn is_recent(&self) -> bool {
        !self.run_options.older_kubernetes
    }

    /// Returns how long a controller may take to react.
    pub fn patience(&self) -> Duration {
        PATIENCE
    }

    /// Starts an agent on a new node, with one pool called default.
    pub fn add_agent(&mut self) -> Result<&mut Agent> {
        self.add_agent_with(|rig| rig.add_pool("default"))
    }

    /// Starts an agent on a new node that looks, and loses patience, ten times as soon as others, and a class for it.
    pub fn add_hurried_agent(&mut self) -> Result<()> {
        self.class = self.add_class(|_| {})?;
        self.add_agent_with(|rig| {
            rig.frontend_flags.push(HURRIED.into());
            rig.add_pool("default")
        })?;
        Ok(())
    }

    /// Starts an agent on a new node whose rig is prepared by `prepare`.
    pub fn add_agent_with(&mut self, prepare: impl FnOnce(&mut crate::rig::Rig) -> Result<()>) -> Result<&mut Agent> {
        let name = format!("{}-{}", self.namespace, self.nodes);
        self.nodes += 1;
        let mut agent = self.lay_out(&name)?;
        prepare(&mut agent.rig)?;
        self.agents.push(agent);
        self.wait_until_policies_are_relied_on()?;
        let agent = self.agents.last_mut().context("an agent")?;
        agent.rig.start()?;
        Ok(agent)
    }

    /// Waits until an agent that starts now would rely on the labels set by the claims' policy. Where the policy is not
    /// bound, no agent does, and there is nothing to wait for.
    pub fn wait_until_policies_are_relied_on(&self) -> Result<()> {
        for part in if self.is_recent() { CLAIMS_POLICY } else { AGENTS_POLICY } {
            let request = Request::get(part).body(Vec::new())?;
            let part: Value = match self.access.run(self.access.client().request(request)) {
                Ok(part) => part,
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                Err(error) => return Err(error).context("read the claims' policy"),
            };
            let made: Time = from_value(part["metadata"]["creationTimestamp"].clone())?;
            let age = Timestamp::now().duration_since(made.0);
            // The API server runs on this machine, so both clocks agree.
            std::thread::sleep(RELIED_ON.saturating_sub(Duration::try_from(age).unwrap_or_default()));
        }
        Ok(())
    }

    /// Creates a node and what its agent needs.
    pub fn lay_out(&self, name: &str) -> Result<Agent> {
        let work = self.work.join(NODES).join(name);
        let agent = Agent::lay_out(&self.access, &self.run_options, &work, &self.templates, name)?;
        let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(self.access.client());
        let scope = json!({ "metadata": { "labels": { "test": self.namespace } } });
        self.access.run(nodes.patch(name, &Default::default(), &kube::api::Patch::Merge(scope)))?;
        Ok(agent)
    }

    /// The first node's name.
    pub fn node(&self) -> String {
        self.agents[0].node.clone()
    }

    /// The first agent.
    pub fn agent(&mut self) -> &mut Agent {
        &mut self.agents[0]
    }

    /// Creates a class like [`objects::class`], changed by `edit`, whose volumes the agents may make, and returns its name.
    pub fn add_class(&mut self, edit: impl FnOnce(&mut Value)) -> Result<String> {
        let name = self.next_class();
        grant::give(&self.access, &name)?;
        self.add_class_without_grant(edit)
    }

    /// The name of the class that is created next.
    #[must_use]
    pub fn next_class(&self) -> String {
        format!("{}-{}", self.namespace, self.classes.len())
    }

    /// Creates a class whose volumes the agents may not make, and returns its name.
    pub fn add_class_without_grant(&mut self, edit: impl FnOnce(&mut Value)) -> Result<String> {
        let name = self.next_class();
        let mut class = objects::class(&name);
        edit(&mut class);
        let classes: Api<StorageClass> = Api::all(self.access.client());
        self.access.run(classes.create(&PostParams::default(), &from_value(class)?))?;
        self.classes.push(name.clone());
        Ok(name)
    }

    fn make_namespace(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.access.client());
        let namespace = from_value(json!({ "metadata": { "name": self.namespace } }))?;
        self.access.run(namespaces.create(&PostParams::default(), &namespace))?;
        // Without it no pod can be created.
        self.access.wait_for_service_account(&self.namespace, "default", PATIENCE)
    }

    /// Deletes pods and claims. It is the agents that must delete their volumes.
    fn delete_everything(&self) -> Result<()> {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let pods: Api<Pod> = Api::namespaced(self.access.client(), &self.namespace);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.access.client(), &self.namespace);
        self.access.run(pods.delete_collection(&now, &ListParams::default()))?;
        self.access.run(claims.delete_collection(&now, &ListParams::default()))?;
        let volumes: Api<PersistentVolume> = Api::all(self.access.client());
        self.access.wait(PATIENCE, "the volumes of deleted claims to be deleted", || {
            let left = self.access.run(volumes.list(&ListParams::default()))?;
            let of_claim = |volume: &&PersistentVolume| {
                let spec = volume.spec.as_ref();
                let claim = spec.and_then(|spec| spec.claim_ref.as_ref());
                claim.and_then(|claim| claim.namespace.as_ref()) == Some(&self.namespace)
            };
            let names: Vec<_> = left.items.iter().filter(of_claim).map(|volume| &volume.metadata.name).collect();
            ensure!(names.is_empty(), "volumes are left over: {names:?}");
            Ok(())
        })
    }
}
