//! An API server that is not as it should be, and the agents behind it.

use std::future::pending;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Request, StatusCode, header};
use axum::response::Response;
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::bundle::planted;

pub const DRIVER: &str = "bulkhead.csi.local";

/// How many claims there are, and how large each is: as large as the API server stores.
const CLAIMS: usize = 200;
const CLAIM: usize = 1_400_000;

/// How many nodes hang: far more than can be waited for.
const HANGING: usize = 1000;

/// What is not as it should be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// Claims and pods are large.
    Large,
    /// The API server's list of PersistentVolumes leads from each page to the same one.
    Circle,
    /// The agent's lists do not end, in pages as large as are read.
    AgentLarge,
    /// In pages with nothing on them.
    AgentEmpty,
    /// In pages that lead to the first one.
    AgentCircle,
    /// There are secrets where none should be, an agent is down, a log does not end, and another is too long.
    Secrets,
    /// No node ever answers.
    Hanging,
}

/// Answers a request.
pub async fn answer(State(flaw): State<Flaw>, request: Request<Body>) -> Response {
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
    if let Some(answer) = (flaw == Flaw::Secrets).then(|| planted(&path, &query)).flatten() {
        return answer;
    }
    if flaw == Flaw::Hanging && (path.contains("/proxy/") || path.ends_with("/log")) {
        pending::<()>().await;
    }
    if let Some((_, path)) = path.split_once("/proxy/") {
        return agent(flaw, path, &query);
    }
    let kinds = path.rsplit('/').next().unwrap_or_default();
    let items = match kinds {
        "persistentvolumeclaims" | "pods" if flaw == Flaw::Large && !query.contains("labelSelector") => {
            return large(kinds);
        }
        "nodes" => vec![json!({ "metadata": { "name": "node-a", "labels": { format!("{DRIVER}/node"): "node-a" } } })],
        "csinodes" => vec![json!({ "metadata": { "name": "node-a" },
                                   "spec": { "drivers": [{ "name": DRIVER, "nodeID": "node-a" }] } })],
        "pods" if flaw == Flaw::Hanging && path.contains("/namespaces/bulkhead-system/") => {
            (0..HANGING).map(|number| running(&number.to_string())).collect()
        }
        "pods" if path.contains("/namespaces/bulkhead-system/") => vec![json!({
            "metadata": { "name": "agent-a", "namespace": "bulkhead-system" },
            "spec": { "nodeName": "node-a",
                      "containers": [{ "name": "frontend", "ports": [{ "name": "metrics", "containerPort": 9808 }] }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        })],
        // On a node that is gone: `doctor` looks for it on others.
        "volumesnapshotcontents" => vec![json!({
            "metadata": { "name": "content", "uid": "1", "labels": { format!("{DRIVER}/node"): "node-b" } },
            "spec": { "driver": DRIVER, "deletionPolicy": "Delete", "source": { "volumeHandle": "x" },
                      "volumeSnapshotRef": { "namespace": "shop", "name": "monday", "uid": "2" } },
        })],
        "persistentvolumes"
        | "persistentvolumeclaims"
        | "leases"
        | "csistoragecapacities"
        | "storageclasses"
        | "daemonsets"
        | "pods"
        | "validatingadmissionpolicies"
        | "validatingadmissionpolicybindings" => Vec::new(),
        _ => {
            let status =
                json!({ "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound", "message": "none" });
            return said(StatusCode::NOT_FOUND, &status);
        }
    };
    let next = if flaw == Flaw::Circle && kinds == "persistentvolumes" { "again" } else { "" };
    said(
        StatusCode::OK,
        &json!({ "kind": "List", "apiVersion": "v1", "metadata": { "continue": next }, "items": items }),
    )
}

fn agent(flaw: Flaw, path: &str, query: &str) -> Response {
    let (list, entry) = match path {
        "volumes/owners" => ("volumes", json!({ "volume": "v", "pool": "default", "problem": "x".repeat(1000) })),
        "snapshots" => ("snapshots", json!({ "snapshot": "s".repeat(1000), "pool": "default" })),
        "metrics" => return Response::new(Body::from("")),
        _ => return said(StatusCode::OK, &json!({})),
    };
    let page: u32 = query.trim_start_matches("after=").parse().unwrap_or(1_000_000);
    let (entries, next) = match flaw {
        Flaw::AgentLarge => (900, Some((page + 1).to_string())),
        Flaw::AgentEmpty => (0, Some((page + 1).to_string())),
        Flaw::AgentCircle => (1, Some("1000000".to_owned())),
        _ => (1, None),
    };
    said(StatusCode::OK, &json!({ list: vec![entry; entries], "next": next }))
}

/// The pod of an agent, on a node of its own.
pub fn running(name: &str) -> Value {
    json!({
        "metadata": { "name": format!("agent-{name}"), "namespace": "bulkhead-system" },
        "spec": { "nodeName": format!("node-{name}"), "containers": [{
            "name": "frontend", "ports": [{ "name": "metrics", "containerPort": 9808 }] }] },
        "status": { "containerStatuses": [{ "name": "frontend", "ready": true, "restartCount": 0, "image": "x",
                                            "imageID": "x", "state": {} }] },
    })
}

/// An answer in JSON.
pub fn said(status: StatusCode, answer: &Value) -> Response {
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Body::from(answer.to_string())).unwrap()
}

/// Claims or pods, in a single page, each filled with annotations.
fn large(kinds: &str) -> Response {
    let filling = Bytes::from("x".repeat(CLAIM));
    let volumes = if kinds == "pods" {
        json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data-0" } }])
    } else {
        json!([])
    };
    let object = move |number: usize| {
        let comma = if number == 0 { "" } else { "," };
        let begin = format!(
            "{comma}{{\"metadata\":{{\"namespace\":\"shop\",\"name\":\"data-{number}\",\"uid\":\"{number}\",\"annotations\":{{\"note\":\""
        );
        let end = format!(
            "\",\"volume.kubernetes.io/storage-provisioner\":\"{DRIVER}\"}}}},\"spec\":{{\"volumes\":{volumes},\"resources\":{{\"requests\":{{\"storage\":\"1Gi\"}}}}}}}}"
        );
        [Bytes::from(begin), filling.clone(), Bytes::from(end)]
    };
    let begin = Bytes::from("{\"kind\":\"List\",\"apiVersion\":\"v1\",\"metadata\":{},\"items\":[");
    let objects = stream::iter((0..CLAIMS).flat_map(object));
    let all = stream::iter([begin]).chain(objects).chain(stream::iter([Bytes::from("]}")]));
    let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
    response.body(Body::from_stream(all.map(Ok::<_, std::io::Error>))).unwrap()
}
