//! VolumeSnapshotContents, which unlike the mock's other objects change when they are patched.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::http::Method;
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::{answer, found, list, number, watch};

const GROUP: &str = "/apis/snapshot.storage.k8s.io/v1";

/// The objects of snapshots.
pub struct Contents {
    /// Whether the API server knows the kind.
    known: AtomicBool,
    objects: Mutex<Vec<Value>>,
    version: AtomicU64,
    events: broadcast::Sender<Value>,
    /// What was told, with its version: a watch is told what has happened since the list.
    told: Mutex<Vec<(u64, Value)>>,
}

impl Default for Contents {
    fn default() -> Self {
        Self {
            known: AtomicBool::default(),
            objects: Mutex::default(),
            version: AtomicU64::new(100),
            events: broadcast::Sender::new(64),
            told: Mutex::default(),
        }
    }
}

impl Contents {
    /// Stores `content`, as another client would, and tells the watches.
    pub fn put(&self, mut content: Value) {
        self.known.store(true, Ordering::Relaxed);
        self.store(&mut content);
    }

    /// The object of that name, if it exists.
    pub fn get(&self, name: &str) -> Option<Value> {
        self.objects.lock().unwrap().iter().find(|object| object["metadata"]["name"] == name).cloned()
    }

    /// The answer to a request, if it is about snapshots.
    pub fn answer(&self, method: &Method, path: &str, query: &str, body: &Value) -> Option<Response> {
        // The API server knows no groups of snapshots.
        if path.starts_with("/apis/groupsnapshot.storage.k8s.io/") {
            return Some(answer(404, &json!({ "kind": "Status", "code": 404, "reason": "NotFound" })));
        }
        let rest = path.strip_prefix(GROUP)?;
        if !self.known.load(Ordering::Relaxed) {
            return Some(answer(404, &json!({ "kind": "Status", "code": 404, "reason": "NotFound" })));
        }
        let words: Vec<_> = rest.split('/').skip(1).collect();
        Some(match (method, words.as_slice()) {
            (&Method::GET, []) => {
                let kind = json!({ "name": "volumesnapshotcontents", "kind": "VolumeSnapshotContent",
                                   "singularName": "volumesnapshotcontent", "namespaced": false, "verbs": ["get"] });
                answer(200, &json!({ "groupVersion": "snapshot.storage.k8s.io/v1", "resources": [kind] }))
            }
            (&Method::GET, ["volumesnapshotcontents"]) if query.contains("watch=true") => {
                let _objects = self.objects.lock().unwrap();
                let since = number(query, "resourceVersion").unwrap_or_default();
                let told = self.told.lock().unwrap();
                let missed = told.iter().filter(|(version, _)| *version > since).map(|(_, event)| event.clone());
                watch(missed.collect(), Some(self.events.subscribe()))
            }
            (&Method::GET, ["volumesnapshotcontents"]) => {
                let objects = self.objects.lock().unwrap();
                let mut page = list("snapshot.storage.k8s.io/v1", "VolumeSnapshotContent", &objects, query);
                let last = self.version.load(Ordering::Relaxed) - 1;
                page["metadata"]["resourceVersion"] = json!(last.to_string());
                answer(200, &page)
            }
            (&Method::GET, ["volumesnapshotclasses", name]) => {
                found(&[json!({ "metadata": { "name": "daily" }, "driver": "bulkhead.csi.local" })], name)
            }
            (&Method::PATCH, ["volumesnapshotcontents", name, ..]) => self.patched(name, body),
            _ => answer(405, &json!({ "kind": "Status", "code": 405, "reason": "MethodNotAllowed" })),
        })
    }

    fn patched(&self, name: &str, patch: &Value) -> Response {
        let Some(mut object) = self.get(name) else { return found(&[], name) };
        let seen = &patch["metadata"]["resourceVersion"];
        if !seen.is_null() && *seen != object["metadata"]["resourceVersion"] {
            return answer(409, &json!({ "kind": "Status", "code": 409, "reason": "Conflict" }));
        }
        merge(&mut object, patch);
        self.store(&mut object);
        answer(200, &object)
    }

    fn store(&self, object: &mut Value) {
        let mut objects = self.objects.lock().unwrap();
        let version = self.version.fetch_add(1, Ordering::Relaxed);
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let is_free = object["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty);
        let is_gone = is_free && !object["metadata"]["deletionTimestamp"].is_null();
        objects.retain(|other| other["metadata"]["name"] != object["metadata"]["name"]);
        if !is_gone {
            objects.push(object.clone());
        }
        let kind = if is_gone { "DELETED" } else { "MODIFIED" };
        let event = json!({ "type": kind, "object": object });
        self.told.lock().unwrap().push((version, event.clone()));
        let _ = self.events.send(event);
    }
}

/// Applies a merge patch.
fn merge(object: &mut Value, patch: &Value) {
    let Some(changes) = patch.as_object() else {
        object.clone_from(patch);
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            object.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut object[key], change);
        }
    }
}
