//! `impact`: who has something on a node, and so what stands still while it is away, and what is lost if it does not come
//! back.

use std::collections::BTreeSet;

use bulkhead_console::report::{Report, Table};
use bulkhead_model::quantity::{Quantity, count};
use serde_json::json;

use crate::cluster::{Cluster, Failure, Volume};
use crate::pods::{self, Pods};
use crate::snapshots::{self, Snapshot};

/// What is on a node.
struct Impact {
    volumes: Vec<(Volume, Vec<String>)>,
    snapshots: Vec<Snapshot>,
    /// Whether the user may list pods.
    knows_pods: bool,
}

pub async fn of(cluster: &Cluster, node: &str) -> Result<Report, Failure> {
    let pods = pods::by_claim(cluster, None).await?;
    let volumes = cluster.volumes().await?.into_iter().filter(|volume| volume.node == node);
    let snapshots = snapshots::all(cluster).await?.unwrap_or_default();
    let impact = Impact {
        knows_pods: pods.is_some(),
        volumes: with_pods(volumes, &pods.unwrap_or_default()),
        snapshots: snapshots.into_iter().filter(|snapshot| snapshot.node == node).collect(),
    };
    Ok(impact.report(node))
}

fn with_pods(volumes: impl Iterator<Item = Volume>, pods: &Pods) -> Vec<(Volume, Vec<String>)> {
    let mut with_pods: Vec<_> = volumes
        .map(|volume| {
            let claim = volume.claim.as_ref().map(|(namespace, name, _)| (namespace.clone(), name.clone()));
            let pods = claim.and_then(|claim| pods.get(&claim)).cloned().unwrap_or_default();
            (volume, pods)
        })
        .collect();
    with_pods.sort_by_key(|(volume, _)| (volume.claim_name(), volume.name.clone()));
    with_pods
}

impl Impact {
    fn report(&self, node: &str) -> Report {
        let json = json!({
            "node": node,
            "volumes": self.volumes.iter().map(|(volume, pods)| {
                let mut json = volume.json();
                json["pods"] = json!(self.knows_pods.then_some(pods));
                json
            }).collect::<Vec<_>>(),
            "snapshots": self.snapshots.iter().map(Snapshot::json).collect::<Vec<_>>(),
        });
        if self.volumes.is_empty() && self.snapshots.is_empty() {
            return Report::new(json, Table::line(format!("nothing is on node {node}: no pod waits for it")));
        }
        let row = |(volume, pods): &(Volume, Vec<String>)| {
            let claim = if volume.claim.is_some() { volume.claim_name() } else { "-".to_owned() };
            let pods = match (self.knows_pods, pods.as_slice()) {
                (false, _) => "?".to_owned(),
                (true, []) => "-".to_owned(),
                (true, pods) => pods.join(","),
            };
            [claim, Quantity::from(volume.bytes).to_string(), volume.phase.clone(), volume.policy.clone(), pods]
        };
        let headings = ["claim", "size", "phase", "policy", "pods"];
        Report::new(json, Table::headed(headings, self.volumes.iter().map(row)).noting(self.notes()))
    }

    fn notes(&self) -> Vec<String> {
        let promised = self.volumes.iter().map(|(volume, _)| volume.bytes).sum::<u64>();
        let namespaces: BTreeSet<_> =
            self.volumes.iter().filter_map(|(volume, _)| Some(&volume.claim.as_ref()?.0)).collect();
        let of_volume = |(volume, pods): &(Volume, Vec<String>)| {
            let namespace = volume.claim.as_ref().map(|(namespace, ..)| namespace.clone());
            pods.iter().map(|pod| (namespace.clone(), pod.clone())).collect::<Vec<_>>()
        };
        let pods: BTreeSet<_> = self.volumes.iter().flat_map(of_volume).collect();
        let mut notes = vec![format!(
            "{} of {} ({}), and {} with them",
            count(self.volumes.len() as u64, "volume"),
            count(namespaces.len() as u64, "namespace"),
            Quantity::from(promised),
            if self.knows_pods { count(pods.len() as u64, "pod") } else { "pods that you may not list".to_owned() }
        )];
        if !self.snapshots.is_empty() {
            let names: Vec<_> = self.snapshots.iter().map(Snapshot::full_name).collect();
            notes.push(format!("{}: {}", count(names.len() as u64, "snapshot"), names.join(", ")));
        }
        notes.push(
            "none of it is anywhere else: pods with these claims wait while the node is away; what is to live without it is copied first, by its application or from a backup"
                .to_owned(),
        );
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_has_is_told_with_who_uses_it() {
        let volume = |name: &str, claim: Option<&str>| Volume {
            name: name.to_owned(),
            claim: claim.map(|claim| ("shop".to_owned(), claim.to_owned(), "uid".to_owned())),
            bytes: 64 << 20,
            ..Volume::default()
        };
        let pods = Pods::from([(("shop".to_owned(), "db".to_owned()), vec!["db-0".to_owned(), "db-1".to_owned()])]);
        let volumes = with_pods([volume("b", Some("db")), volume("a", None)].into_iter(), &pods);
        assert_eq!(
            volumes.iter().map(|(volume, pods)| (&*volume.name, pods.len())).collect::<Vec<_>>(),
            [("a", 0), ("b", 2)]
        );
        let impact = Impact { volumes, snapshots: Vec::new(), knows_pods: true };
        assert!(
            impact.notes()[0].starts_with("2 volumes of 1 namespace (128 MiB), and 2 pods"),
            "{:?}",
            impact.notes()
        );
    }
}
