//! `cordon`: has a pool take no new volumes; `uncordon` ends that. The node's agent goes by an annotation of its Lease, which it
//! reads whenever it writes it.

use bulkhead_console::report::{Report, Table};
use bulkhead_model::objects::{lease, names};
use bulkhead_protocol::PoolName;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::agents;
use crate::cluster::{Cluster, Failure};

/// How often it is tried again: the agent writes its Lease, too.
const ATTEMPTS: usize = 8;

/// Has the pool called `name`, which is `NODE/POOL`, take no new volumes if `is_wanted`, and take them again if not.
pub async fn set(cluster: &Cluster, name: &str, is_wanted: bool) -> Result<Report, Failure> {
    let (node, pool) = parse(name)?;
    if is_wanted {
        check_exists(cluster, node, &pool).await?;
    }
    let is_news = change(cluster, node, &pool, is_wanted).await?;
    let text = match (is_wanted, is_news) {
        (true, true) => "is cordoned: its agent publishes within 70 seconds that it takes no new volumes",
        (true, false) => "was cordoned before",
        (false, true) => "is not cordoned any more: its agent publishes its room within 70 seconds",
        (false, false) => "was not cordoned",
    };
    let seen = is_news.then(|| "`kubectl bulkhead pools` shows what the agent goes by".to_owned());
    let table = Table::line(format!("pool {pool} of node {node} {text}")).noting(seen);
    Ok(Report::new(json!({ "node": node, "pool": pool.as_str(), "cordoned": is_wanted, "changed": is_news }), table))
}

fn parse(name: &str) -> Result<(&str, PoolName), Failure> {
    let parts = name.split_once('/').filter(|(node, _)| names::is_object_name(node));
    let parsed = parts.and_then(|(node, pool)| Some((node, pool.parse().ok()?)));
    parsed.ok_or_else(|| Failure::PoolName(name.to_owned()))
}

/// Fails if the node's agent says that it has no such pool. One that cannot be asked may have it.
async fn check_exists(cluster: &Cluster, node: &str, pool: &PoolName) -> Result<(), Failure> {
    let pods = match agents::pods(cluster).await {
        Err(failure) if failure.is_forbidden() => return Ok(()),
        pods => pods?,
    };
    let own = pods.iter().filter(|(found, _)| found == node).map(|(found, pod)| (found, pod));
    let Some(Ok(agent)) = agents::read_all(cluster, own).await.remove(node) else { return Ok(()) };
    // One that has just started may know of none.
    if agent.pools.is_empty() || agent.pools.contains_key(pool.as_str()) {
        return Ok(());
    }
    let pools = agent.pools.into_keys().collect::<Vec<_>>().join(", ");
    Err(Failure::NoPool { node: node.to_owned(), pool: pool.to_string(), pools })
}

/// Writes it, and returns whether it was otherwise.
async fn change(cluster: &Cluster, node: &str, pool: &PoolName, is_wanted: bool) -> Result<bool, Failure> {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let key = names::cordoned_pools(&cluster.driver);
    let operation = || format!("changing the Lease of the agent of node {node}");
    let mut attempts = 0;
    loop {
        let found = leases.get_opt(node).await.map_err(cluster.failed(operation()))?;
        let is_own = |lease: &Lease| lease.labels().get(names::DRIVER_LABEL) == Some(&cluster.driver);
        let lease = found.filter(is_own).ok_or_else(|| Failure::NoAgent(node.to_owned()))?;
        let mut pools = lease::cordoned(lease.annotations().get(&key));
        if is_wanted == pools.contains(pool) {
            return Ok(false);
        }
        if is_wanted {
            pools.insert(pool.clone());
        } else {
            pools.remove(pool);
        }
        let (version, annotations) = (lease.resource_version(), json!({ &key: lease::cordon(&pools) }));
        let patch = json!({ "metadata": { "resourceVersion": version, "annotations": annotations } });
        match leases.patch(node, &PatchParams::default(), &Patch::Merge(patch)).await {
            // Whoever has changed it meanwhile may have changed this.
            Err(kube::Error::Api(status)) if status.code == 409 && attempts < ATTEMPTS => attempts += 1,
            done => return done.map(|_| true).map_err(cluster.failed(operation())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_named_with_its_node() {
        let (node, pool) = parse("worker-1.example.org/fast").unwrap();
        assert_eq!((node, pool.as_str()), ("worker-1.example.org", "fast"));
        for name in ["", "fast", "/fast", "worker-1/", "worker-1/../x", "a/b/c", "Worker/fast"] {
            assert!(matches!(parse(name), Err(Failure::PoolName(_))), "{name}");
        }
    }
}
