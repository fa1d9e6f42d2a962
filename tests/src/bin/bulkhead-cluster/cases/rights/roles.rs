//! What the agents' role grants, and what it does not.

use anyhow::{Result, ensure};
use bulkhead_tests::cases;
use bulkhead_tests::cluster::Cluster;
use serde_json::json;

use super::volumes::{OWN, POLICY};
use super::{CAPACITIES, TOKENS, UNBOUND, VOLUMES, with_rights};

cases! {
    on Cluster;
    an_agent_sees_what_it_needs: Bare,
    an_agent_sees_nothing_else: Bare,
    the_server_says_which_node_a_token_is_bound_to: Bare,
    a_pods_token_is_bound_to_its_node: Bare,
    an_agent_impersonates_no_other: Bare,
    the_policies_have_no_type_warnings: Bare,
}

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const POLICY_BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const LABELLING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";

fn an_agent_sees_what_it_needs(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        for path in [
            VOLUMES,
            "/api/v1/persistentvolumeclaims",
            "/apis/storage.k8s.io/v1/storageclasses",
            &format!("/apis/storage.k8s.io/v1/csinodes/{}", rights.here),
            CAPACITIES,
            "/api/v1/namespaces/kube-system",
            POLICIES,
            POLICY_BINDINGS,
        ] {
            rights.agent.get(path).granted()?;
        }
        if rights.cluster.is_recent() {
            for kind in [LABELLING, BINDINGS] {
                rights.agent.get(&format!("{kind}/bulkhead-claims")).granted()?;
                rights.agent.get(&format!("{kind}?fieldSelector=metadata.name%3Dbulkhead-claims")).granted()?;
            }
        }
        Ok(())
    })
}

fn an_agent_sees_nothing_else(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        for path in [
            "/api/v1/nodes",
            &format!("/api/v1/nodes/{}", rights.here),
            "/api/v1/pods",
            "/api/v1/secrets",
            "/api/v1/configmaps",
            "/api/v1/serviceaccounts",
            "/api/v1/namespaces",
            "/api/v1/namespaces/default",
            "/api/v1/namespaces/bulkhead-system/secrets",
            "/apis/apps/v1/daemonsets",
            "/apis/coordination.k8s.io/v1/leases",
            "/apis/events.k8s.io/v1/events",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "/apis/storage.k8s.io/v1/csidrivers",
            "/apis/storage.k8s.io/v1/csinodes",
            "/apis/storage.k8s.io/v1/csistoragecapacities",
            "/apis/storage.k8s.io/v1/volumeattachments",
            LABELLING,
            BINDINGS,
            &format!("{BINDINGS}/bulkhead-sources"),
            &format!("{BINDINGS}?fieldSelector=metadata.name%3Dbulkhead-sources"),
        ] {
            rights.agent.get(path).refused_by_role()?;
        }
        let class = format!("/apis/storage.k8s.io/v1/storageclasses/{}", rights.class);
        rights.agent.delete(&class).refused_by_role()?;
        rights.agent.delete(&rights.claims()).refused_by_role()?;
        rights.agent.create(TOKENS, &json!({ "spec": {} })).refused_by_role()
    })
}

fn the_server_says_which_node_a_token_is_bound_to(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview" });
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let extra = |answer: &serde_json::Value| {
            answer["status"]["userInfo"]["extra"]["authentication.kubernetes.io/node-name"][0].clone()
        };
        let answer = rights.agent.create(path, &review).granted()?;
        ensure!(extra(&answer) == rights.here, "it says {answer}");
        let answer = rights.unbound.create(path, &review).granted()?;
        ensure!(extra(&answer).is_null(), "it says {answer}");
        Ok(())
    })
}

fn a_pods_token_is_bound_to_its_node(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let holder = rights.in_a_pod()?;
        let (_, own) = rights.make_claim(&rights.claim("own", &rights.here))?;
        let (_, theirs) = rights.make_claim(&rights.claim("theirs", &rights.there))?;
        holder.try_create(VOLUMES, &rights.volume(&own, &rights.here)).granted()?;
        holder.try_create(VOLUMES, &rights.volume(&theirs, &rights.there)).refused_by(POLICY, OWN)
    })
}

fn an_agent_impersonates_no_other(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        let (_, theirs) = rights.make_claim(&rights.claim("theirs", &rights.there))?;
        let volume = rights.volume(&theirs, &rights.there);
        rights.agent.create_as_agent_of(&rights.there, VOLUMES, &volume).refused_by_role()?;
        // The server knows nothing else about an account that is impersonated.
        rights.administrator.create_as_some_agent(VOLUMES, &volume).refused_by(POLICY, UNBOUND)?;
        // The same request is granted to a user who may impersonate the agent.
        rights.administrator.create_as_agent_of(&rights.there, VOLUMES, &volume).granted()?;
        Ok(())
    })
}

fn the_policies_have_no_type_warnings(cluster: &mut Cluster) -> Result<()> {
    with_rights(cluster, |rights| {
        for name in ["volumes", "claims", "bindings", "capacities", "events", "leases", "tokens"] {
            let path = format!("{POLICIES}/bulkhead-agent-{name}");
            let status = rights.cluster.access.wait(rights.cluster.patience(), "a policy to be checked", || {
                let policy = rights.administrator.get(&path).granted()?;
                let checked = &policy["status"]["observedGeneration"];
                ensure!(
                    *checked == policy["metadata"]["generation"],
                    "generation {checked} was checked, the latest is {}",
                    policy["metadata"]["generation"]
                );
                Ok(policy["status"].clone())
            })?;
            let warnings = &status["typeChecking"]["expressionWarnings"];
            ensure!(warnings.is_null(), "{name}: {warnings}");
        }
        Ok(())
    })
}
