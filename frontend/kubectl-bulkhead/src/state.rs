//! The state of each volume, as the agent on its node has found it.

use std::collections::{BTreeMap, BTreeSet};

use bulkhead_model::findings::{AbnormalVolume, Findings};
use serde_json::{Value, json};

use crate::agents;
use crate::cluster::{Cluster, Volume};

/// How many volumes are explained below a table.
const EXPLAINED: usize = 20;

/// What the agents have found, by node; or why that is unknown.
#[derive(Default)]
pub struct States(BTreeMap<String, Result<Findings, String>>);

impl States {
    /// Asks the agents on the nodes of `volumes`.
    pub async fn read(cluster: &Cluster, volumes: &[Volume]) -> Self {
        let nodes: BTreeSet<_> = volumes.iter().map(|volume| volume.node.clone()).collect();
        Self(agents::findings(cluster, nodes).await)
    }

    /// The state of `volume` in one word; `-` if it is unknown.
    pub fn word(&self, volume: &Volume) -> &'static str {
        match self.0.get(&volume.node) {
            Some(Ok(findings)) => find(findings, volume).map_or("ok", AbnormalVolume::word),
            Some(Err(_)) | None => "-",
        }
    }

    /// A volume's state as JSON, with what is wrong; null if it is unknown.
    pub fn json(&self, volume: &Volume) -> Value {
        let Some(Ok(findings)) = self.0.get(&volume.node) else { return Value::Null };
        let found = find(findings, volume);
        json!({ "state": found.map_or("ok", AbnormalVolume::word), "message": found.map(|found| &found.message) })
    }

    /// Returns what to say below a table of `volumes`: what is wrong with those that are not ok, and of which nodes
    /// nothing is known.
    pub fn notes(&self, volumes: &[Volume]) -> Vec<String> {
        let abnormal = volumes.iter().filter_map(|volume| {
            let findings = self.0.get(&volume.node)?.as_ref().ok()?;
            Some(format!("{}: {}", volume.name, find(findings, volume)?.message))
        });
        let mut notes: Vec<_> = abnormal.collect();
        if notes.len() > EXPLAINED {
            let more = notes.len() - EXPLAINED;
            notes.truncate(EXPLAINED);
            notes.push(format!("{more} more need attention: -o json says why"));
        }
        let mut unknown = BTreeMap::<&str, Vec<&str>>::new();
        for (node, findings) in &self.0 {
            if let Err(why) = findings {
                unknown.entry(why).or_default().push(node);
            }
        }
        notes.extend(unknown.into_iter().map(|(why, nodes)| format!("unknown on {}: {why}", nodes.join(", "))));
        notes
    }
}

fn find<'f>(findings: &'f Findings, volume: &Volume) -> Option<&'f AbnormalVolume> {
    findings.abnormal.iter().find(|found| found.volume == volume.handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(name: &str, node: &str) -> Volume {
        Volume { name: name.to_owned(), handle: format!("handle-{name}"), node: node.to_owned(), ..Volume::default() }
    }

    #[test]
    fn what_nobody_has_found_is_ok_only_where_somebody_has_looked() {
        let message = "it is gone".to_owned();
        let missing =
            AbnormalVolume { volume: "handle-1".to_owned(), missing: true, message, ..AbnormalVolume::default() };
        let findings = Findings { abnormal: vec![missing], ..Findings::default() };
        let why = Err("no agent".to_owned());
        let states = States([("a".to_owned(), Ok(findings)), ("b".to_owned(), why)].into());
        let volumes = [volume("1", "a"), volume("2", "a"), volume("3", "b")];
        assert_eq!(volumes.each_ref().map(|volume| states.word(volume)), ["missing", "ok", "-"]);
        assert_eq!(states.notes(&volumes), ["1: it is gone", "unknown on b: no agent"]);
        assert_eq!(states.json(&volumes[0]), json!({ "state": "missing", "message": "it is gone" }));
        assert_eq!(states.json(&volumes[2]), Value::Null);
        let many: Vec<_> = (0..EXPLAINED + 3).map(|_| volume("1", "a")).collect();
        assert!(states.notes(&many)[EXPLAINED].starts_with("3 more"));
    }
}
