//! The driver's storage classes, and what is wrong with them.

use std::collections::BTreeMap;

use bulkhead_model::objects::names;
use bulkhead_model::objects::storage_class;
use bulkhead_model::printable::printable;
use bulkhead_model::quantity::count;
use bulkhead_model::volumes::Backing;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};

use crate::cluster::{ACCOUNT, Cluster, Failure};

/// How much of what an agent says is shown, in bytes.
const LONGEST_OBSTACLE: usize = 512;

/// The parameter that names a pool.
const POOL: &str = "pool";

/// Pools by name, and whether any node's may have filesystems in images.
pub type Pools = BTreeMap<String, bool>;

/// The driver's classes, each with the reason why no node can make its volumes, if that is so. `pools` are all that the
/// agents know; `None` if some agents cannot be queried.
pub async fn flaws(cluster: &Cluster, pools: Option<&Pools>) -> Result<BTreeMap<String, Option<String>>, Failure> {
    let classes: Api<StorageClass> = Api::all(cluster.client.clone());
    let own = |class: StorageClass| (class.provisioner == cluster.driver).then_some(class);
    let list = cluster.list("listing StorageClasses", classes, ListParams::default(), own).await?;
    let obstacles = Obstacles::read(cluster).await?;
    let mut flaws = BTreeMap::new();
    for class in list {
        let flaw = match flaw(&class, pools) {
            None => lacking_right(cluster, &class).await?,
            flaw => flaw,
        };
        let flaw = flaw.or_else(|| obstacles.of(&class.name_any()));
        flaws.insert(class.name_any(), flaw);
    }
    Ok(flaws)
}

/// What the agents say is in the way of volumes of each class on their nodes, with the node; `None` if nothing is.
#[derive(Default)]
struct Obstacles(BTreeMap<String, Vec<Option<(String, String)>>>);

impl Obstacles {
    async fn read(cluster: &Cluster) -> Result<Self, Failure> {
        let (mut obstacles, key) = (Self::default(), names::obstacle(&cluster.driver));
        for (node, capacity) in cluster.capacities().await? {
            let why = capacity.annotations().get(&key).map(|why| printable(why, LONGEST_OBSTACLE).into_owned());
            obstacles.0.entry(capacity.storage_class_name).or_default().push(why.map(|why| (node, why)));
        }
        Ok(obstacles)
    }

    /// Why no node can make volumes of `class`, if none of them can: where some can, the others are meant to be as they
    /// are.
    fn of(&self, class: &str) -> Option<String> {
        let nodes = self.0.get(class)?;
        let others = nodes.len().saturating_sub(1) as u64;
        let (node, why) = nodes.iter().cloned().collect::<Option<Vec<_>>>()?.into_iter().next()?;
        let more = if others == 0 { String::new() } else { format!(", and {} more", count(others, "node")) };
        Some(format!("{why} (node {node}{more})"))
    }
}

/// Returns what to do if the agents may not serve a class. Whoever may not ask for others' rights is told nothing.
async fn lacking_right(cluster: &Cluster, class: &StorageClass) -> Result<Option<String>, Failure> {
    let binds_at_once = class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer");
    let wanted = [Some(names::PROVISION_VERB), binds_at_once.then_some(names::TAKE_VERB)];
    let (namespace, name) = (&cluster.namespace, class.name_any());
    for verb in wanted.into_iter().flatten() {
        if may(cluster, verb, &name).await? == Some(false) {
            let verbs: String = wanted.iter().flatten().map(|verb| format!(" --verb={verb}")).collect();
            return Ok(Some(format!(
                "the agents are not granted the verb {verb} on it: `kubectl create clusterrole bulkhead-class-{name}{verbs} --resource=storageclasses.storage.k8s.io --resource-name={name}`, then `kubectl create clusterrolebinding bulkhead-class-{name} --clusterrole=bulkhead-class-{name} --serviceaccount={namespace}:{ACCOUNT}`"
            )));
        }
    }
    Ok(None)
}

/// Returns whether the agents' account has a verb on a class, as far as the cluster's user may know.
async fn may(cluster: &Cluster, verb: &str, class: &str) -> Result<Option<bool>, Failure> {
    let namespace = &cluster.namespace;
    let attributes = ResourceAttributes {
        group: Some("storage.k8s.io".to_owned()),
        resource: Some("storageclasses".to_owned()),
        name: Some(class.to_owned()),
        verb: Some(verb.to_owned()),
        ..ResourceAttributes::default()
    };
    let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{namespace}"), "system:authenticated"];
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{namespace}:{ACCOUNT}")),
            groups: Some(groups.map(str::to_owned).to_vec()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let reviews: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    match reviews.create(&PostParams::default(), &review).await {
        Ok(answer) => Ok(Some(answer.status.is_some_and(|status| status.allowed))),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => Err(cluster.failed("asking for the agents' rights")(error)),
    }
}

fn flaw(class: &StorageClass, pools: Option<&Pools>) -> Option<String> {
    if let Some(fault) = storage_class::flaw(class) {
        return Some(fault.to_string());
    }
    let (pools, parameters) = (pools?, storage_class::parameters(class).ok()?);
    let wanted = class.parameters.as_ref().and_then(|all| all.get(POOL));
    if let Some(wanted) = wanted.filter(|wanted| !pools.contains_key(*wanted)) {
        return Some(format!("no node has a pool called {wanted}"));
    }
    let mut usable = pools.iter().filter(|(name, _)| wanted.is_none_or(|wanted| wanted == *name));
    let lacks_filesystems = parameters.backing(None) == Backing::Image && !usable.any(|(_, filesystems)| *filesystems);
    lacks_filesystems.then(|| {
        "no node's pool is configured for filesystems in images: see docs/install.md, or remove backing=image"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    #[test]
    fn what_is_in_the_way_counts_where_it_is_on_every_node() {
        let obstacle = |node: &str| Some((node.to_owned(), "the type ext4 is not available".to_owned()));
        let class = |class: &str, nodes| (class.to_owned(), nodes);
        let obstacles = Obstacles(BTreeMap::from([
            class("somewhere", vec![obstacle("a"), None]),
            class("nowhere", vec![obstacle("a"), obstacle("b")]),
        ]));
        assert_eq!((obstacles.of("somewhere"), obstacles.of("unknown")), (None, None));
        let told = obstacles.of("nowhere").unwrap();
        assert_eq!(told, "the type ext4 is not available (node a, and 1 node more)");
    }

    #[test]
    fn a_pool_that_no_node_has_is_a_flaw_only_if_all_are_known() {
        let class = |parameters: Value| -> StorageClass {
            from_value(json!({ "metadata": { "name": "a" }, "provisioner": "d", "parameters": parameters })).unwrap()
        };
        let pools = Pools::from([("fast".to_owned(), false), ("imaged".to_owned(), true)]);
        let slow = class(json!({ "pool": "slow" }));
        assert_eq!(flaw(&slow, Some(&pools)).as_deref(), Some("no node has a pool called slow"));
        assert_eq!(flaw(&slow, None), None);
        assert_eq!(flaw(&class(json!({ "pool": "fast" })), Some(&pools)), None);
        assert_eq!(flaw(&class(json!({})), Some(&pools)), None);
        let imaged = |pool: Value| flaw(&class(json!({ "backing": "image", "pool": pool })), Some(&pools));
        assert_eq!(imaged(json!("imaged")), None);
        assert!(imaged(json!("fast")).unwrap().contains("filesystems in images"));
        assert_eq!(flaw(&class(json!({ "backing": "image" })), Some(&pools)), None, "one of them is");
        assert!(flaw(&class(json!({ "backing": "image" })), Some(&Pools::new())).is_some());
        assert!(flaw(&class(json!({ "poool": "fast" })), None).unwrap().contains("poool"));
    }
}
