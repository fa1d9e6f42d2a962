//! `capacity --by-namespace`: what each namespace has of the nodes, where that is limited.

use std::collections::BTreeMap;

use bulkhead_console::report::{Report, Table};
use bulkhead_model::quantity::Quantity;
use serde_json::{Value, json};

use crate::agents::{self, Holding};
use crate::cluster::{Cluster, Failure};
use crate::nodes;

/// What is said of nodes whose agents name no namespaces.
const UNLIMITED: &str = "no share is set, or nothing is there yet: see --namespace-share of bulkhead-frontend";

pub async fn list(cluster: &Cluster) -> Result<Report, Failure> {
    let members = nodes::members(cluster).await?;
    let pods = members.iter().filter_map(|(node, member)| Some((node, member.pod.as_ref()?)));
    let mut read = agents::read_all(cluster, pods).await;
    let (mut json, mut rows, mut unknown) = (Vec::new(), Vec::new(), BTreeMap::<String, Vec<&str>>::new());
    for (node, _) in members.iter().filter(|(_, member)| member.exists) {
        let host_service = || Err("no pod to ask: see the metrics of the frontend on the node".to_owned());
        match read.remove(node).unwrap_or_else(host_service) {
            Ok(agent) if agent.holdings.is_empty() => unknown.entry(UNLIMITED.to_owned()).or_default().push(node),
            Ok(agent) => {
                json.extend(agent.holdings.iter().map(|(of, holding)| described(node, of, holding)));
                rows.extend(agent.holdings.iter().map(|(of, holding)| row(node, of, holding)));
            }
            Err(why) => unknown.entry(why).or_default().push(node),
        }
    }
    let unknown = unknown.iter().map(|(why, nodes)| format!("unknown on {}: {why}", nodes.join(", ")));
    let table = Table::headed(["node", "pool", "namespace", "promised", "volumes", "of-its-share"], rows);
    Ok(Report::new(json.into(), table.noting(unknown)))
}

fn row(node: &str, (pool, namespace): &(String, String), holding: &Holding) -> [String; 6] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        node.to_owned(),
        pool.clone(),
        namespace.clone(),
        or_dash(holding.promised.map(|bytes| Quantity::from(bytes).to_string())),
        or_dash(holding.volumes.map(|volumes| volumes.to_string())),
        or_dash(holding.ratio.map(|ratio| format!("{:.0}%", ratio * 100.0))),
    ]
}

fn described(node: &str, (pool, namespace): &(String, String), holding: &Holding) -> Value {
    json!({
        "node": node, "pool": pool, "namespace": namespace, "promisedBytes": holding.promised,
        "volumes": holding.volumes, "shareUsedRatio": holding.ratio,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_not_made_up() {
        let of = ("fast".to_owned(), "(others)".to_owned());
        let holding = Holding { promised: Some(3 << 30), volumes: Some(7), ratio: None };
        assert_eq!(row("n", &of, &holding), ["n", "fast", "(others)", "3 GiB", "7", "-"]);
        let shop = ("fast".to_owned(), "shop".to_owned());
        assert_eq!(row("n", &shop, &Holding { ratio: Some(0.926), ..holding })[5], "93%");
        assert_eq!(described("n", &of, &Holding::default())["shareUsedRatio"], Value::Null);
    }
}
