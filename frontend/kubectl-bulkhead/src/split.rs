//! Pods whose claims are on different nodes, or wait for them, so that they fit on none: a claim that begins as a copy is on
//! the node of its source, and a new one where the scheduler has put it before it knew.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_model::check::Check;
use bulkhead_model::objects::names::shown;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use crate::cluster::Volume;
use crate::pods::Pods;

/// A claim's namespace and name, with its node.
type Placed = BTreeMap<(String, String), String>;

/// Those among `pods`, by the volumes that there are and the claims that `wait` for one, each with its node.
pub fn find(pods: &Pods, volumes: &[Volume], waiting: &[(String, PersistentVolumeClaim)]) -> Vec<Check> {
    let mut nodes = Placed::new();
    for volume in volumes {
        if let Some((namespace, name, _)) = volume.claim.as_ref().filter(|_| !volume.node.is_empty()) {
            nodes.insert((namespace.clone(), name.clone()), volume.node.clone());
        }
    }
    for (node, claim) in waiting {
        nodes.entry((claim.namespace().unwrap_or_default(), claim.name_any())).or_insert_with(|| node.clone());
    }
    let mut of_pods = BTreeMap::<(String, String), BTreeMap<String, BTreeSet<String>>>::new();
    for (claim @ (namespace, name), pods) in pods {
        let Some(node) = nodes.get(claim) else { continue };
        for pod in pods {
            let of_pod = of_pods.entry((namespace.clone(), pod.clone())).or_default();
            of_pod.entry(node.clone()).or_default().insert(name.clone());
        }
    }
    of_pods.into_iter().filter(|(_, by_node)| by_node.len() > 1).map(check).collect()
}

fn check(((namespace, pod), by_node): ((String, String), BTreeMap<String, BTreeSet<String>>)) -> Check {
    let claims = by_node.iter().map(|(node, claims)| {
        let claims = claims.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        format!("{claims} on {}", shown(node))
    });
    let message = format!(
        "pod {namespace}/{pod} fits on no node, since its claims are on several: {}; delete the claim that holds no data, and it is made again where the others are",
        claims.collect::<Vec<_>>().join("; ")
    );
    Check::failed("claims", message)
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_pod_between_two_nodes_is_told() {
        let key = |name: &str| ("shop".to_owned(), name.to_owned());
        let pods = Pods::from([
            (key("copy"), vec!["web".to_owned()]),
            (key("new"), vec!["web".to_owned(), "job".to_owned()]),
            (key("other"), vec!["job".to_owned()]),
        ]);
        let volume = |name: &str, node: &str| Volume {
            node: node.to_owned(),
            claim: Some(("shop".to_owned(), name.to_owned(), "1".to_owned())),
            ..Volume::default()
        };
        let waits = from_value(json!({ "metadata": { "namespace": "shop", "name": "copy" } })).unwrap();
        let found = find(&pods, &[volume("new", "a"), volume("other", "a")], &[("b".to_owned(), waits)]);
        assert_eq!(found.len(), 1);
        let told = &found[0].message;
        assert!(told.starts_with("pod shop/web") && told.contains("new on a; copy on b"), "{told}");
    }
}
