//! The agents' requests, and those of a driver that they are compared with, as the API server's audit log records them.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::access::Access;
use super::fixture::PATIENCE;
use super::manifests::{NAMESPACE, SERVICE_ACCOUNT};

/// The users of another driver's sidecars, whose requests are recorded, too.
pub const SIDECARS: [&str; 2] = ["csi-provisioner", "csi-snapshotter"];

/// The extra field of a user that names the node a token is bound to.
const NODE: &str = "authentication.kubernetes.io/node-name";

/// The extra field of a user that names the token.
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// A request that was answered. Watches are left out, because they stay open.
#[derive(Clone, Debug)]
pub struct Request {
    /// `get`, `list`, `patch`, …
    pub verb: String,
    /// The kind of object, with its subresource: `persistentvolumeclaims/status`.
    pub resource: String,
    /// The object's name; empty for a list, and for a creation whose response is not recorded.
    pub name: String,
    /// The HTTP status of the response.
    pub status: u64,
    /// The token it came with.
    pub credential: String,
}

/// The number of requests, by verb and resource: `patch persistentvolumeclaims/status`.
pub type Requests = BTreeMap<String, usize>;

impl Request {
    fn of_entry(entry: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &entry["objectRef"];
        let resource = match object["subresource"].as_str() {
            Some(subresource) => format!("{}/{subresource}", text(&object["resource"])),
            None => text(&object["resource"]),
        };
        Self {
            verb: text(&entry["verb"]),
            resource,
            name: text(&object["name"]),
            status: entry["responseStatus"]["code"].as_u64().unwrap_or_default(),
            credential: text(&entry["user"]["extra"][CREDENTIAL][0]),
        }
    }

    /// Returns whether it creates a PersistentVolume.
    pub fn creates_volume(&self) -> bool {
        self.verb == "create" && self.resource == "persistentvolumes"
    }

    /// Returns whether it concerns neither events nor capacity nor the Lease, which agents write at times of their own
    /// choosing.
    pub fn is_essential(&self) -> bool {
        !matches!(self.resource.as_str(), "events" | "csistoragecapacities" | "leases")
    }
}

/// All requests so far by the agent of `node`, or by all agents, in order.
pub fn log(access: &Access, node: Option<&str>) -> Result<Vec<Request>> {
    let agents = agents();
    let mut entries = entries(access, node.unwrap_or(&agents))?;
    entries.retain(|entry| match node {
        Some(node) => entry["user"]["extra"][NODE][0] == node,
        None => entry["user"]["username"] == agents,
    });
    Ok(entries.iter().map(Request::of_entry).collect())
}

/// The user of all agents.
pub fn agents() -> String {
    format!("system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}")
}

/// The number of requests so far by this user.
///
/// # Errors
/// When the log cannot be read.
pub fn requests_by(access: &Access, user: &str) -> Result<Requests> {
    let mut entries = entries(access, user)?;
    entries.retain(|entry| entry["user"]["username"] == user);
    Ok(count(&entries.iter().map(Request::of_entry).collect::<Vec<_>>()))
}

/// The entries that contain this text, in order.
fn entries(access: &Access, text: &str) -> Result<Vec<Value>> {
    let log = fs::read_to_string(access.directory().join("audit.log"))?;
    // Most lines are about other agents, and parsing a line takes far longer than searching it.
    let lines = log.lines().filter(|line| line.contains(text));
    // The last line may be incomplete.
    let entries = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(entries.filter(|entry| entry["verb"] != "watch").collect())
}

/// The number of requests so far by the agent of `node`, or by all agents.
pub fn requests(access: &Access, node: Option<&str>) -> Result<Requests> {
    Ok(count(&log(access, node)?))
}

/// The number of these requests, by verb and resource.
pub fn count(log: &[Request]) -> Requests {
    let mut requests = Requests::new();
    for request in log {
        *requests.entry(format!("{} {}", request.verb, request.resource)).or_default() += 1;
    }
    requests
}

/// By how much `after` exceeds `before`.
pub fn since(before: &Requests, after: &Requests) -> Requests {
    let more = |(what, number): (&String, &usize)| {
        let new = number - before.get(what).copied().unwrap_or_default();
        (new > 0).then(|| (what.clone(), new))
    };
    after.iter().filter_map(more).collect()
}

/// Waits until the agent of `node` has made no essential request for `quiet`, and returns its requests so far.
pub fn settled(access: &Access, node: &str, quiet: Duration) -> Result<Vec<Request>> {
    let essential = |log: &[Request]| log.iter().filter(|request| request.is_essential()).count();
    let mut number = essential(&log(access, Some(node))?);
    let mut since = Instant::now();
    access.wait(PATIENCE, &format!("the agent of {node} to make no more requests"), || {
        let now = log(access, Some(node))?;
        if essential(&now) != number {
            (number, since) = (essential(&now), Instant::now());
        }
        ensure!(since.elapsed() >= quiet, "it has made {number} requests");
        Ok(now)
    })
}
