//! The scene of a test that is about a cluster: a namespace, nodes, and an agent on each.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{from_value, json};

use super::access::Access;
use super::agent::Agent;
use super::control_plane::{ControlPlane, START};
use super::{manifests, node, objects};
use crate::case::Case;
use crate::keeper::NODES;
use crate::scene::Scene;
use crate::setting::Setting;

/// How long what the controllers do may take, on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long until the agents go by policies that were just applied.
pub const POLICIES: Duration = Duration::from_secs(11);

/// A namespace of a shared control plane, and agents of its own.
#[derive(Debug)]
pub struct Cluster {
    /// The way to the API server.
    pub access: Access,
    /// The test's namespace; also what its classes and nodes are called after.
    pub namespace: String,
    /// The agents, one a node.
    pub agents: Vec<Agent>,
    /// A class whose claims wait for a node.
    pub class: String,
    classes: Vec<String>,
    nodes: usize,
    setting: Setting,
    work: PathBuf,
    templates: PathBuf,
}

impl Scene for Cluster {
    type Shared = ControlPlane;

    // Several waits, each of which may take what a loaded machine needs.
    const LIMIT: Duration = Duration::from_secs(300);

    fn share(setting: &mut Setting) -> Result<ControlPlane> {
        let control_plane = ControlPlane::start()?;
        let access = control_plane.access()?;
        manifests::apply(&access.kubeconfig(), "base")?;
        // Agents trust the policies to be in force only then.
        std::thread::sleep(POLICIES);
        setting.control_plane = Some(control_plane.directory().to_owned());
        Ok(control_plane)
    }

    fn end(control_plane: ControlPlane, all_passed: bool) -> Result<()> {
        if !all_passed {
            println!("the control plane's logs are kept in {}", control_plane.keep().display());
        }
        Ok(())
    }

    fn set(case: &Case<Self>, setting: &Setting, work: &Path, templates: &Path) -> Result<Self> {
        let mut cluster = Self::enter(setting, work, templates)?;
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
            finished = finished.and(agent.stand.finish().with_context(|| format!("on node {name}")));
            // A test may have deleted it.
            let _ = node::delete(&self.access, &name);
        }
        let classes: Api<StorageClass> = Api::all(self.access.client());
        for name in &self.classes {
            let _ = self.access.run(classes.delete(name, &DeleteParams::default()));
        }
        let namespaces: Api<Namespace> = Api::all(self.access.client());
        self.access.run(namespaces.delete(&self.namespace, &DeleteParams::default()))?;
        finished
    }
}

impl Cluster {
    /// A namespace called after `work`, below which everything else is.
    ///
    /// # Errors
    /// When the control plane does not serve.
    pub fn enter(setting: &Setting, work: &Path, templates: &Path) -> Result<Self> {
        let directory = setting.control_plane.as_ref().context("the run has no control plane")?;
        let access = Access::of(directory)?;
        // An earlier test may have ended while it kept one of them away.
        for name in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"] {
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
            setting: setting.clone(),
            work: work.to_owned(),
            templates: templates.to_owned(),
        };
        cluster.make_namespace()?;
        Ok(cluster)
    }

    /// How long what the controllers do may take.
    pub fn patience(&self) -> Duration {
        PATIENCE
    }

    /// Starts an agent on a new node, with one pool called default.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn add_agent(&mut self) -> Result<&mut Agent> {
        self.add_agent_with(|stand| stand.add_pool("default"))
    }

    /// Starts an agent on a new node whose stand is prepared by `prepare`.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn add_agent_with(
        &mut self,
        prepare: impl FnOnce(&mut crate::stand::Stand) -> Result<()>,
    ) -> Result<&mut Agent> {
        let name = format!("{}-{}", self.namespace, self.nodes);
        self.nodes += 1;
        let mut agent = self.lay_out(&name)?;
        prepare(&mut agent.stand)?;
        self.agents.push(agent);
        let agent = self.agents.last_mut().context("an agent")?;
        agent.stand.start()?;
        Ok(agent)
    }

    /// Makes a node and what its agent needs.
    ///
    /// # Errors
    /// When something cannot be made.
    pub fn lay_out(&self, name: &str) -> Result<Agent> {
        let work = self.work.join(NODES).join(name);
        let agent = Agent::lay_out(&self.access, &self.setting, &work, &self.templates, name)?;
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

    /// Makes a class like [`objects::class`], changed by `edit`, and gives its name.
    ///
    /// # Errors
    /// When the API server refuses it.
    pub fn add_class(&mut self, edit: impl FnOnce(&mut serde_json::Value)) -> Result<String> {
        let name = format!("{}-{}", self.namespace, self.classes.len());
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
        // Without it no pod can be made.
        self.access.wait_for_service_account(&self.namespace, "default", PATIENCE)
    }

    /// Deletes pods and claims; their volumes must go by themselves.
    fn delete_everything(&self) -> Result<()> {
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let pods: Api<Pod> = Api::namespaced(self.access.client(), &self.namespace);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.access.client(), &self.namespace);
        self.access.run(pods.delete_collection(&now, &ListParams::default()))?;
        self.access.run(claims.delete_collection(&now, &ListParams::default()))?;
        let volumes: Api<PersistentVolume> = Api::all(self.access.client());
        self.access.wait(PATIENCE, "the volumes of deleted claims to go", || {
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
