//! What an agent's token allows: access to its own node's objects and nothing else, by the roles and policies in
//! deploy/. Each request is really made, with the node's token, with another node's, and with one that is not bound to
//! a node.

mod callers;
mod claims;
mod contents;
mod copies;
mod drawn;
mod groups;
mod holder;
mod labels;
mod leases;
mod reports;
mod roles;
mod tokens;
mod volumes;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bulkhead_tests::case::Case;
use bulkhead_tests::cluster::Cluster;
use bulkhead_tests::cluster::node::{self, TOPOLOGY_KEY};
use bulkhead_tests::cluster::objects::{PROVISIONER, SELECTED_NODE, claim};
use bulkhead_tests::kubelet::DRIVER;
use serde_json::{Value, json};

use self::holder::{Holder, Patch};

/// The annotation that hands a claim over to a provisioner, as older releases spell it.
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
const EXPANSION_NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CAPACITIES: &str = "/apis/storage.k8s.io/v1/namespaces/bulkhead-system/csistoragecapacities";
/// Where the agents' pods are.
const PODS: &str = "/api/v1/namespaces/bulkhead-system/pods";

/// What makes tokens of the agents' account.
const TOKENS: &str = "/api/v1/namespaces/bulkhead-system/serviceaccounts/bulkhead-agent/token";

/// What each of the policies says to the holder of a token that is not bound to a node.
const UNBOUND: &str = "the agent's token is not bound to a node";

/// The tests. None of them starts an agent.
pub fn cases() -> Vec<Case<Cluster>> {
    let modules = [
        volumes::cases(),
        drawn::cases(),
        claims::cases(),
        copies::cases(),
        contents::cases(),
        groups::cases(),
        labels::cases(),
        reports::cases(),
        leases::cases(),
        roles::cases(),
        tokens::cases(),
        callers::cases(),
    ];
    modules.concat()
}

/// Two nodes and the holders of several tokens.
struct Rights<'a> {
    cluster: &'a Cluster,
    class: String,
    /// The node whose agent makes most of the requests.
    here: String,
    /// Another node.
    there: String,
    administrator: Holder<'a>,
    /// The agent of the first node.
    agent: Holder<'a>,
    /// The agent of the other node.
    other: Holder<'a>,
    /// The holder of a token of the agents' service account that is not bound to a node.
    unbound: Holder<'a>,
}

/// Runs a test with two nodes, and removes what it has created.
fn with_rights(cluster: &mut Cluster, test: impl FnOnce(&Rights<'_>) -> Result<()>) -> Result<()> {
    let class = cluster.add_class(|_| {})?;
    let cluster = &*cluster;
    let access = &cluster.access;
    let (here, there) = (format!("{}-here", cluster.namespace), format!("{}-there", cluster.namespace));
    let bound = |name: &str| -> Result<Holder<'_>> {
        let uid = node::make(access, name, &[])?;
        Holder::of_token(access, &node::token(access, name, &uid, Duration::from_secs(3600))?)
    };
    let rights = Rights {
        cluster,
        class,
        agent: bound(&here)?,
        other: bound(&there)?,
        unbound: Holder::of_token(access, &node::unbound_token(access)?)?,
        administrator: Holder::administrator(access),
        here,
        there,
    };
    let done = rights.wait_for_policies().and_then(|()| test(&rights));
    let cleaned = rights.clean_up();
    done.and(cleaned)
}

impl Rights<'_> {
    /// Policies take effect a moment after they are created.
    fn wait_for_policies(&self) -> Result<()> {
        let volume = self.volume(&json!({ "metadata": { "name": "probe", "uid": "probe" } }), &self.there);
        self.cluster.access.wait(self.cluster.patience(), "the policies to be in force", || {
            self.agent.try_create(VOLUMES, &volume).refused_by(volumes::POLICY, volumes::OWN)?;
            self.agent
                .try_create(&self.events(), &self.event(&self.there))
                .refused_by(reports::EVENTS, reports::REPORTER)?;
            let made = self.administrator.try_create(&self.claims(), &self.claim("probe", &self.there)).granted()?;
            let labelled = made["metadata"]["labels"][TOPOLOGY_KEY] == self.there;
            ensure!(labelled == self.cluster.is_recent(), "claims are labelled: {labelled}");
            Ok(())
        })
    }

    /// Checks that the agent's patch is refused. An older API server drops fields that it does not know, and then
    /// changes nothing except who wrote last.
    fn refuses(&self, path: &str, change: &Value, policy: &str, message: &str) -> Result<()> {
        let content = |object: &Value| {
            let mut object = object.clone();
            for field in ["resourceVersion", "managedFields"] {
                object["metadata"][field].take();
            }
            object
        };
        let before = content(&self.administrator.get(path).granted()?);
        let answer = self.agent.patch(path, Patch::Merge, change);
        if !self.cluster.is_recent() && answer.object().is_some_and(|object| content(object) == before) {
            return Ok(());
        }
        answer.refused_by(policy, message)
    }

    /// The holder of the token of an agent's pod on the first node.
    fn in_a_pod(&self) -> Result<Holder<'_>> {
        let pod = json!({
            "metadata": { "name": format!("{}-agent", self.cluster.namespace) },
            "spec": {
                "serviceAccountName": "bulkhead-agent",
                "nodeName": self.here,
                "containers": [{ "name": "main", "image": "none" }],
            },
        });
        let pod = self.administrator.create(PODS, &pod).granted()?;
        let metadata = &pod["metadata"];
        let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"] });
        let request = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": { "boundObjectRef": bound },
        });
        let answer = self.administrator.create(TOKENS, &request).granted()?;
        let token = answer["status"]["token"].as_str().context("an answer without a token")?;
        Holder::of_token(&self.cluster.access, token)
    }

    /// Removes everything outside the test's namespace, continuing even if a removal fails.
    fn clean_up(&self) -> Result<()> {
        let removed = [self.remove_volumes(), self.remove_node(&self.here), self.remove_node(&self.there)];
        removed.into_iter().collect()
    }

    fn remove_volumes(&self) -> Result<()> {
        let volumes = self.administrator.get(VOLUMES).granted()?;
        for volume in volumes["items"].as_array().context("a list of volumes")? {
            if volume["spec"]["storageClassName"] == self.class {
                let path = path_of(VOLUMES, volume);
                // The test may already have deleted the volume. No agent is there to remove the finalizer of the
                // others.
                let _ = self.administrator.delete(&path);
                let _ = self.administrator.patch(&path, Patch::Merge, &json!({ "metadata": { "finalizers": null } }));
            }
        }
        Ok(())
    }

    /// Removes a node, the agent's pod on it and its capacity.
    fn remove_node(&self, node: &str) -> Result<()> {
        let pods = format!("{PODS}?fieldSelector=spec.nodeName={node}&gracePeriodSeconds=0");
        let capacities = format!("{CAPACITIES}?labelSelector={TOPOLOGY_KEY}={node}");
        let removed = [
            self.administrator.delete(&pods).granted().map(drop),
            self.administrator.delete(&capacities).granted().map(drop),
            node::delete(&self.cluster.access, node),
        ];
        removed.into_iter().collect()
    }

    fn claims(&self) -> String {
        format!("/api/v1/namespaces/{}/persistentvolumeclaims", self.cluster.namespace)
    }

    fn events(&self) -> String {
        format!("/apis/events.k8s.io/v1/namespaces/{}/events", self.cluster.namespace)
    }

    /// A claim for which the scheduler has selected `node`.
    fn claim(&self, name: &str, node: &str) -> Value {
        let mut claim = self.open_claim(name);
        claim["metadata"]["annotations"][SELECTED_NODE] = json!(node);
        claim
    }

    /// A claim of our driver for which no node is selected yet.
    fn open_claim(&self, name: &str) -> Value {
        let mut claim = claim(name, &self.class, "8Mi");
        claim["metadata"]["annotations"][PROVISIONER] = json!(DRIVER);
        claim
    }

    /// Creates a claim as a user would, and returns its path and the object.
    fn make_claim(&self, claim: &Value) -> Result<(String, Value)> {
        let made = self.administrator.create(&self.claims(), claim).granted()?;
        Ok((path_of(&self.claims(), &made), made))
    }

    /// The volume as the agent of `node` would create it for a claim.
    fn volume(&self, claim: &Value, node: &str) -> Value {
        let handle = format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap_or_default());
        let term = json!({ "matchExpressions": [{ "key": TOPOLOGY_KEY, "operator": "In", "values": [node] }] });
        json!({
            "metadata": {
                "name": format!("{handle}.{node}"),
                "labels": { TOPOLOGY_KEY: node },
                "annotations": {
                    "pv.kubernetes.io/provisioned-by": DRIVER,
                    "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                    "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
                },
                "finalizers": [FINALIZER],
            },
            "spec": {
                "capacity": { "storage": "8Mi" },
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": self.class,
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": self.cluster.namespace,
                    "name": claim["metadata"]["name"],
                    "uid": claim["metadata"]["uid"],
                },
                "csi": { "driver": DRIVER, "volumeHandle": handle },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [term] } },
            },
        })
    }

    /// Returns what the agent of `node` reports on a claim.
    fn event(&self, node: &str) -> Value {
        json!({
            "metadata": { "generateName": "data-", "namespace": self.cluster.namespace },
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": DRIVER,
            "reportingInstance": node,
            "action": "Provision",
            "reason": "ProvisioningSucceeded",
            "type": "Normal",
            "note": "made",
            "regarding": { "kind": "PersistentVolumeClaim", "namespace": self.cluster.namespace, "name": "data" },
        })
    }

    /// Creates a claim on a node and its volume, and waits until they are bound.
    fn bound(&self, name: &str, node: &str, agent: &Holder<'_>) -> Result<(String, String)> {
        let (claim_path, claim) = self.make_claim(&self.claim(name, node))?;
        let volume = agent.create(VOLUMES, &self.volume(&claim, node)).granted()?;
        self.cluster.access.wait(self.cluster.patience(), "the claim to be bound", || {
            let claim = self.administrator.get(&claim_path).granted()?;
            ensure!(claim["status"]["phase"] == "Bound", "its status is {}", claim["status"]);
            Ok(())
        })?;
        Ok((claim_path, path_of(VOLUMES, &volume)))
    }
}

fn path_of(kind: &str, object: &Value) -> String {
    format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap_or_default())
}
