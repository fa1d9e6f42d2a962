//! Leases: an agent may say of its own node that it works, and of no other.

use anyhow::Result;
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use serde_json::{Value, json};

use super::{Patch, UNBOUND, path_of, with_rights};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/bulkhead-system/leases";
const POLICY: &str = "bulkhead-agent-leases";
// The message of the policy's expression.
const OWN: &str = "an agent may write only the Lease of its own node";

cases! {
    on Cluster;
    an_agent_speaks_for_its_own_node_only: Bare,
}

fn lease(node: &str) -> Value {
    let metadata = json!({ "name": node });
    let spec = json!({ "holderIdentity": node, "leaseDurationSeconds": 180 });
    json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec })
}

fn an_agent_speaks_for_its_own_node_only(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (own, theirs) = (lease(&rights.here), lease(&rights.there));
        let (path, their_path) = (path_of(LEASES, &own), path_of(LEASES, &theirs));
        let tested = || {
            for _ in 0..2 {
                rights.agent.patch(&path, Patch::Apply, &own).granted()?;
            }
            rights.agent.get(&path).granted()?;
            rights.other.patch(&their_path, Patch::Apply, &theirs).granted()?;
            for (stranger, message) in [(&rights.agent, OWN), (&rights.unbound, UNBOUND)] {
                stranger.patch(&their_path, Patch::Apply, &theirs).refused_by(POLICY, message)?;
                let later = json!({ "spec": { "renewTime": "2100-01-01T00:00:00.000000Z" } });
                stranger.patch(&their_path, Patch::Merge, &later).refused_by(POLICY, message)?;
                stranger.create(LEASES, &lease("somebody-else")).refused_by(POLICY, message)?;
            }
            rights.agent.delete(&path).refused_by_role()?;
            // Which of the other nodes work, so that nobody waits for those that do not.
            rights.agent.get(LEASES).granted()?;
            // The kubelets', by which the control plane judges nodes.
            let kubelets = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
            rights.agent.get(&path_of(kubelets, &own)).refused_by_role()?;
            rights.agent.create(kubelets, &own).refused_by_role()
        };
        let done = tested();
        for path in [path, their_path] {
            // The test may have failed before it was made.
            let _ = rights.administrator.delete(&path);
        }
        done
    })
}
