//! The agents' requests, as the API server's audit log has them.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Result;
use serde_json::Value;

use super::access::Access;

/// Requests of agents, by verb and resource: `patch persistentvolumeclaims/status`.
pub type Requests = BTreeMap<String, usize>;

/// The requests so far of the agent of `node`, or of all agents. Watches are left out: they last.
///
/// # Errors
/// When the log cannot be read.
pub fn requests(access: &Access, node: Option<&str>) -> Result<Requests> {
    let mut requests = Requests::new();
    for line in fs::read_to_string(access.directory().join("audit.log"))?.lines() {
        // The last line may be half written.
        let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
        let from = &entry["user"]["extra"]["authentication.kubernetes.io/node-name"][0];
        let verb = entry["verb"].as_str().unwrap_or_default();
        if verb == "watch" || node.is_some_and(|node| from != node) {
            continue;
        }
        let object = &entry["objectRef"];
        let mut what = format!("{verb} {}", object["resource"].as_str().unwrap_or_default());
        if let Some(subresource) = object["subresource"].as_str() {
            what += &format!("/{subresource}");
        }
        *requests.entry(what).or_default() += 1;
    }
    Ok(requests)
}

/// What `after` has more than `before`.
pub fn since(before: &Requests, after: &Requests) -> Requests {
    let more = |(what, number): (&String, &usize)| {
        let new = number - before.get(what).copied().unwrap_or_default();
        (new > 0).then(|| (what.clone(), new))
    };
    after.iter().filter_map(more).collect()
}

/// Their number without those that write events and capacities, which are gathered.
pub fn essential(requests: &Requests) -> usize {
    let counted = |what: &&String| !what.ends_with(" events") && !what.ends_with(" csistoragecapacities");
    requests.keys().filter(counted).map(|what| requests[what]).sum()
}
