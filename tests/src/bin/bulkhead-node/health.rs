//! Health, as Kubernetes 1.37 shows it to whoever looks at a pod or a node.

use anyhow::{Context, Result, ensure};
use bulkhead_tests::node::{Kubectl, NAME, eventually};
use serde_json::Value;

use crate::pods::CLASSES;
use crate::story::Story;
use crate::tenants::volume_of;
use crate::volumes::POD;

const POOL: &str = "/srv/bulkhead/default";

/// The limits of a volume's project, and the default limits of its pool, are changed and changed back: that harms nothing.
pub fn conditions_are_shown(story: &mut Story<'_>) -> Result<()> {
    let (kubectl, machine) = (&story.node.kubectl, &story.node.machine);
    let object = kubectl.get(&["pv", &volume_of(kubectl, &CLASSES[0])?])?;
    let volume = object["spec"]["csi"]["volumeHandle"].as_str().context("no volume")?;
    let attributes = machine.run(&format!("lsattr -pd {POOL}/{volume}/data"))?;
    let project = attributes.split_whitespace().next().context("no project")?;
    let limit = |change: &str| machine.run(&format!("xfs_quota -x -c 'limit -p {change}' {POOL}"));
    eventually(|| are_shown(kubectl, None, None))?;
    limit(&format!("bsoft=1m {project}"))?;
    limit("-d bhard=64g")?;
    let shown = eventually(|| are_shown(kubectl, Some(("Degraded", "OtherLimits")), Some("DefaultLimits")));
    limit(&format!("bsoft=0 {project}"))?;
    limit("-d bhard=0")?;
    shown?;
    eventually(|| are_shown(kubectl, None, None))
}

/// The pod's status says this of its volume, and the node's CSINode that of the pool, or nothing.
fn are_shown(kubectl: &Kubectl, of_volume: Option<(&str, &str)>, of_pool: Option<&str>) -> Result<()> {
    let found = |told: &Value| {
        let conditions = told.as_array().into_iter().flatten().flat_map(|entry| entry["healthConditions"].as_array());
        let words = |condition: &Value| {
            let word = |name: &str| condition[name].as_str().unwrap_or_default().to_owned();
            (word("status"), word("reason"))
        };
        conditions.flatten().map(words).collect::<Vec<_>>()
    };
    let expected = |condition: Option<(&str, &str)>| {
        condition.map(|(status, reason)| (status.to_owned(), reason.to_owned())).into_iter().collect::<Vec<_>>()
    };
    let pod = &kubectl.get(&["pod", POD])?["status"]["volumeHealth"];
    ensure!(found(pod) == expected(of_volume), "the pod's volumes: {pod}");
    let node = &kubectl.get(&["csinode", NAME])?["status"]["storageHealth"];
    ensure!(found(node) == expected(of_pool.map(|reason| ("StorageDegraded", reason))), "the node's storage: {node}");
    Ok(())
}
