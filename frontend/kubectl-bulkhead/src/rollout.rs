//! The agents' DaemonSets, and whether they run where they should.

use bulkhead_model::check::Check;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::cluster::{Cluster, Failure};

/// The agents' DaemonSets, one for each group of nodes.
pub async fn daemon_sets(cluster: &Cluster) -> Result<Vec<DaemonSet>, Failure> {
    let sets: Api<DaemonSet> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let parameters = ListParams::default().labels("app.kubernetes.io/name=bulkhead");
    cluster.list("listing DaemonSets", sets, parameters, Some).await
}

/// Returns how far the agents of all groups together have got; and a check for each group that is empty, which the sum
/// hides.
pub fn checks(namespace: &str, sets: &[DaemonSet]) -> Vec<Check> {
    if sets.is_empty() {
        let message = "there is no DaemonSet, which is correct if the agents run as services on the hosts";
        return vec![Check::note("agents", message)];
    }
    let statuses = || sets.iter().filter_map(|set| set.status.as_ref());
    let ready: i32 = statuses().map(|status| status.number_ready).sum();
    let wanted: i32 = statuses().map(|status| status.desired_number_scheduled).sum();
    let message = format!("{ready} of {wanted} are ready");
    let mut checks = Vec::new();
    if ready == wanted && wanted > 0 {
        checks.push(Check::ok("agents", message));
    } else if wanted > 0 {
        let look = format!("{message}; look at `kubectl --namespace {namespace} describe pods`");
        checks.push(Check::failed("agents", look));
    }
    // The controller has not looked at one without a status yet.
    let is_empty = |set: &&DaemonSet| set.status.as_ref().is_none_or(|status| status.desired_number_scheduled == 0);
    checks.extend(sets.iter().filter(is_empty).map(|set| {
        let message = "the DaemonSet matches no node: compare its node selector and tolerations with the nodes' labels and taints";
        Check::failed(format!("agents of {}", set.name_any()), message)
    }));
    checks
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSetStatus;
    use kube::api::ObjectMeta;

    use super::*;

    fn told(groups: &[(i32, i32)]) -> Vec<String> {
        let set = |(at, (number_ready, desired_number_scheduled)): (usize, &(i32, i32))| {
            let metadata = ObjectMeta { name: Some(format!("group-{at}")), ..ObjectMeta::default() };
            let (number_ready, desired_number_scheduled) = (*number_ready, *desired_number_scheduled);
            let status = DaemonSetStatus { number_ready, desired_number_scheduled, ..DaemonSetStatus::default() };
            DaemonSet { metadata, status: Some(status), ..DaemonSet::default() }
        };
        let sets: Vec<_> = groups.iter().enumerate().map(set).collect();
        checks("storage", &sets).into_iter().map(|check| format!("{}: {}", check.name, check.message)).collect()
    }

    #[test]
    fn the_agents_of_every_group_of_nodes_count() {
        assert_eq!(told(&[(3, 3), (2, 2)]), ["agents: 5 of 5 are ready"]);
        let look = "agents: 3 of 5 are ready; look at `kubectl --namespace storage describe pods`";
        assert_eq!(told(&[(3, 3), (0, 2)]), [look]);
    }

    #[test]
    fn a_group_that_matches_no_node_is_not_hidden_by_others() {
        let both = told(&[(3, 3), (0, 0)]);
        assert_eq!(both[0], "agents: 3 of 3 are ready");
        assert!(both[1].starts_with("agents of group-1: the DaemonSet matches no node"), "{both:?}");
        assert_eq!(told(&[(0, 0)]).len(), 1);
    }
}
