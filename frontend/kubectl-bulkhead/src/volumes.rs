//! `volumes`: the volumes, their state, what is used of them, and by which pods.

use bulkhead_console::report::{Report, Table};
use bulkhead_model::quantity::Quantity;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Failure, Volume};
use crate::options::Filter;
use crate::pods::{self, Pods};
use crate::state::States;
use crate::usage::{self, Usage};

/// The columns that come from a volume's object.
pub const HEADINGS: [&str; 8] = ["volume", "node", "claim", "size", "phase", "class", "mode", "policy"];

/// How many of them are shown unless more are requested.
pub const NARROW: usize = 5;

/// The columns with the volume's state, which comes from the agent on its node.
const WITH_STATE: [&str; 6] = ["volume", "node", "claim", "size", "phase", "condition"];

/// All that is to be known of a volume.
const WIDE: [&str; 11] =
    ["volume", "node", "claim", "size", "phase", "condition", "class", "mode", "policy", "used", "pods"];

impl Filter {
    /// Returns whether `volume` is to be listed.
    pub fn admits(&self, volume: &Volume) -> bool {
        let admits = |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let namespace = volume.claim.as_ref().map_or("", |(namespace, ..)| namespace);
        admits(&self.node, &volume.node)
            && admits(&self.namespace, namespace)
            && admits(&self.class, &volume.class)
            && self.phase.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(&volume.phase))
    }
}

/// The volumes that `filter` admits, with all that is to be known of them if `wide`.
pub async fn list(cluster: &Cluster, filter: &Filter, wide: bool) -> Result<Report, Failure> {
    let mut volumes = cluster.volumes().await?;
    volumes.retain(|volume| filter.admits(volume));
    let states = States::read(cluster, &volumes).await;
    if !wide {
        let narrow = |volume: &Volume| {
            let [a, b, c, d, e, ..] = row(volume);
            [a, b, c, d, e, states.word(volume).to_owned()]
        };
        let table = Table::headed(WITH_STATE, volumes.iter().map(narrow)).noting(states.notes(&volumes));
        return Ok(Report::new(json(&volumes), table));
    }
    let pods = pods::by_claim(cluster, filter.namespace.as_deref()).await?;
    let is_used = |volume: &&Volume| match (&pods, &volume.claim) {
        (Some(pods), Some(claim)) => pods.contains_key(&key(claim)),
        (_, claim) => claim.is_some(),
    };
    let nodes = volumes.iter().filter(is_used).map(|volume| volume.node.clone()).collect();
    let usage = usage::read(cluster, nodes).await;
    let rows = volumes.iter().map(|volume| wide_row(volume, &states, &usage, pods.as_ref()));
    let unknown = usage.unknown.iter().map(|(node, why)| format!("what is used on node {node} is unknown: {why}"));
    let forbidden = pods.is_none().then(|| "showing the pods requires the right to list them".to_owned());
    let table = Table::headed(WIDE, rows);
    let table = table.noting(states.notes(&volumes)).noting(unknown.chain(forbidden));
    let json = volumes.iter().map(|volume| described(volume, &states, &usage, pods.as_ref())).collect();
    Ok(Report::new(json, table))
}

/// Returns what every volume's row shows.
pub fn row(volume: &Volume) -> [String; 8] {
    [
        volume.name.clone(),
        volume.node.clone(),
        volume.claim_name(),
        Quantity::from(volume.bytes).to_string(),
        volume.phase.clone(),
        volume.class.clone(),
        volume.mode.clone(),
        volume.policy.clone(),
    ]
}

fn wide_row(volume: &Volume, states: &States, usage: &Usage, pods: Option<&Pods>) -> [String; 11] {
    let [a, b, c, d, e, f, g, h] = row(volume);
    let used = used(volume, usage).map_or_else(|| "-".to_owned(), |bytes| Quantity::from(bytes).to_string());
    let pods = match pods.map(|pods| having(volume, pods)) {
        None | Some([]) => "-".to_owned(),
        Some(names) => names.join(","),
    };
    [a, b, c, d, e, states.word(volume).to_owned(), f, g, h, used, pods]
}

fn described(volume: &Volume, states: &States, usage: &Usage, pods: Option<&Pods>) -> Value {
    let mut json = volume.json();
    json["condition"] = states.json(volume);
    json["usedBytes"] = json!(used(volume, usage));
    json["pods"] = json!(pods.map(|pods| having(volume, pods)));
    json
}

/// Returns how much of a volume is used, if a kubelet measures it.
fn used(volume: &Volume, usage: &Usage) -> Option<u64> {
    usage.of_claims.get(&key(volume.claim.as_ref()?)).copied()
}

/// The pods that have a volume.
fn having<'p>(volume: &Volume, pods: &'p Pods) -> &'p [String] {
    let names = volume.claim.as_ref().and_then(|claim| pods.get(&key(claim)));
    names.map_or(&[], Vec::as_slice)
}

fn key((namespace, name, _): &(String, String, String)) -> (String, String) {
    (namespace.clone(), name.clone())
}

/// The volumes as JSON.
pub fn json(volumes: &[Volume]) -> Value {
    volumes.iter().map(Volume::json).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn volume() -> Volume {
        let text = str::to_owned;
        Volume {
            name: text("pvc-1"),
            uid: text("u"),
            handle: text("pvc-1"),
            node: text("a"),
            claim: Some((text("shop"), text("data"), text("c"))),
            class: text("fast"),
            bytes: 1 << 30,
            mode: text("Filesystem"),
            phase: text("Bound"),
            policy: text("Delete"),
        }
    }

    #[test]
    fn a_filter_admits_what_has_all_that_is_wanted() {
        let all = || Filter { node: None, namespace: None, class: None, phase: None };
        let some = |text: &str| Some(text.to_owned());
        assert!(all().admits(&volume()));
        assert!(Filter { node: some("a"), phase: some("bound"), ..all() }.admits(&volume()));
        assert!(Filter { namespace: some("shop"), class: some("fast"), ..all() }.admits(&volume()));
        assert!(!Filter { node: some("b"), phase: some("Bound"), ..all() }.admits(&volume()));
        let unclaimed = Volume { claim: None, ..volume() };
        assert!(!Filter { namespace: some("shop"), ..all() }.admits(&unclaimed) && all().admits(&unclaimed));
    }

    #[test]
    fn what_nobody_measures_is_not_zero() {
        let claim = ("shop".to_owned(), "data".to_owned());
        let pods = Pods::from([(claim.clone(), vec!["shop-0".to_owned(), "shop-1".to_owned()])]);
        let states = States::default();
        let mut usage = Usage { of_claims: BTreeMap::new(), unknown: BTreeMap::new() };
        let json = described(&volume(), &states, &usage, Some(&pods));
        assert_eq!((&json["usedBytes"], &json["pods"]), (&Value::Null, &json!(["shop-0", "shop-1"])));
        assert_eq!(wide_row(&volume(), &states, &usage, Some(&Pods::new()))[9..], ["-", "-"]);
        assert_eq!(described(&volume(), &states, &usage, None)["pods"], Value::Null, "they may not be listed");
        usage.of_claims.insert(claim, 4096);
        assert_eq!(wide_row(&volume(), &states, &usage, Some(&pods))[9..], ["4 KiB", "shop-0,shop-1"]);
        let unclaimed = Volume { claim: None, ..volume() };
        assert_eq!((used(&unclaimed, &usage), having(&unclaimed, &pods)), (None, &[][..]));
    }
}
