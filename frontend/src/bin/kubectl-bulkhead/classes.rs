//! The driver's storage classes, and what is wrong with them.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_frontend::kubernetes::class_flaw;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::cluster::{Cluster, Failure};

/// The parameter that names a pool.
const POOL: &str = "pool";

/// The driver's classes, each with the reason why no node can make its volumes, if that is so. `pools` are all that the
/// agents know; `None` if some agents cannot be queried.
pub async fn flaws(
    cluster: &Cluster,
    pools: Option<&BTreeSet<String>>,
) -> Result<BTreeMap<String, Option<String>>, Failure> {
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    let list = classes.list(&ListParams::default()).await.map_err(cluster.failed("listing StorageClasses"))?;
    let own = list.items.into_iter().filter(|class| class.provisioner == cluster.driver);
    Ok(own.map(|class| (class.name_any(), flaw(&class, pools))).collect())
}

fn flaw(class: &StorageClass, pools: Option<&BTreeSet<String>>) -> Option<String> {
    if let Some(fault) = class_flaw(class) {
        return Some(fault.to_string());
    }
    let wanted = class.parameters.as_ref()?.get(POOL)?;
    let is_nowhere = pools.is_some_and(|pools| !pools.contains(wanted));
    is_nowhere.then(|| format!("no node has a pool called {wanted}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn a_pool_that_no_node_has_is_a_flaw_only_if_all_are_known() {
        let class = |parameters: Value| -> StorageClass {
            from_value(json!({ "metadata": { "name": "a" }, "provisioner": "d", "parameters": parameters })).unwrap()
        };
        let pools = BTreeSet::from(["fast".to_owned()]);
        let slow = class(json!({ "pool": "slow" }));
        assert_eq!(flaw(&slow, Some(&pools)).as_deref(), Some("no node has a pool called slow"));
        assert_eq!(flaw(&slow, None), None);
        assert_eq!(flaw(&class(json!({ "pool": "fast" })), Some(&pools)), None);
        assert_eq!(flaw(&class(json!({})), Some(&pools)), None);
        assert!(flaw(&class(json!({ "poool": "fast" })), None).unwrap().contains("poool"));
    }
}
