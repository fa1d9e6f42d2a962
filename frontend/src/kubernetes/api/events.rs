//! Events about claims, PersistentVolumes and the node, with the reasons that operators alert on.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_protocol::DriverName;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1 as events;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client, Resource};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::request::request;
use crate::kubernetes::shares::Shares;
use crate::metrics::METRICS;

/// How many events may wait to be written. If there are more, some of whoever has the most are lost: no work ever waits for
/// an event.
const QUEUE: usize = 1024;

/// How many events are written at a time: one that hangs does not hold up the others.
const CONCURRENCY: usize = 4;

/// The longest note that the API accepts, in bytes (events.k8s.io/v1).
const LONGEST_NOTE: usize = 1024;

/// How many notes are remembered, to tell a repetition from something new.
const REMEMBERED: usize = 1024;

/// The reason of an event. Operators alert on these, so they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A volume was made for a claim.
    ProvisioningSucceeded,
    /// No volume could be made for a claim.
    ProvisioningFailed,
    /// A claim is left to a volume populator.
    Provisioning,
    /// The expansion of a volume has started.
    Resizing,
    /// A volume was expanded.
    VolumeResizeSuccessful,
    /// A volume could not be expanded.
    VolumeResizeFailed,
    /// A volume is being given other attributes.
    VolumeModify,
    /// A volume was given other attributes.
    VolumeModifySuccessful,
    /// A volume could not be given other attributes.
    VolumeModifyFailed,
    /// A volume is not to have other attributes any more.
    VolumeModifyCanceled,
    /// A released volume could not be deleted.
    VolumeFailedDelete,
    /// A released volume is deleted once a pool is there that the node may lack.
    VolumeDeleteWaiting,
    /// A snapshot could not be taken. The names of this and the next five are those that other drivers' snapshotters
    /// use.
    SnapshotCreationFailed,
    /// A snapshot that somebody has named could not be found.
    SnapshotContentCheckandUpdateFailed,
    /// A snapshot could not be deleted.
    SnapshotDeleteError,
    /// A group of snapshots could not be taken.
    GroupSnapshotCreationFailed,
    /// A group that somebody has named could not be found.
    GroupSnapshotContentCheckandUpdateFailed,
    /// A group could not be deleted.
    GroupSnapshotDeleteError,
    /// A pool needs attention.
    PoolConditionAbnormal,
    /// A pool has a condition that is intended.
    PoolConditionNotice,
    /// A condition of a pool is over.
    PoolConditionNormal,
    /// A volume needs attention.
    VolumeConditionAbnormal,
    /// A volume is healthy again.
    VolumeConditionNormal,
    /// Volumes of a node belong to no PersistentVolume.
    VolumesOrphaned,
    /// No volume of a storage class can be made.
    StorageClassInvalid,
    /// The token for the API server expires soon.
    TokenExpiring,
}

impl Reason {
    fn event_type(self) -> EventType {
        match self {
            Self::ProvisioningFailed
            | Self::VolumeResizeFailed
            | Self::VolumeModifyFailed
            | Self::VolumeFailedDelete
            | Self::SnapshotCreationFailed
            | Self::SnapshotContentCheckandUpdateFailed
            | Self::SnapshotDeleteError
            | Self::GroupSnapshotCreationFailed
            | Self::GroupSnapshotContentCheckandUpdateFailed
            | Self::GroupSnapshotDeleteError
            | Self::PoolConditionAbnormal
            | Self::VolumeConditionAbnormal
            | Self::VolumesOrphaned
            | Self::StorageClassInvalid
            | Self::TokenExpiring => EventType::Warning,
            Self::ProvisioningSucceeded
            | Self::Provisioning
            | Self::Resizing
            | Self::VolumeResizeSuccessful
            | Self::VolumeModify
            | Self::VolumeModifySuccessful
            | Self::VolumeModifyCanceled
            | Self::VolumeDeleteWaiting
            | Self::PoolConditionNotice
            | Self::PoolConditionNormal
            | Self::VolumeConditionNormal => EventType::Normal,
        }
    }

    fn action(self) -> &'static str {
        match self {
            Self::ProvisioningSucceeded | Self::ProvisioningFailed | Self::Provisioning | Self::StorageClassInvalid => {
                "Provision"
            }
            Self::Resizing | Self::VolumeResizeSuccessful | Self::VolumeResizeFailed => "Resize",
            Self::VolumeModify
            | Self::VolumeModifySuccessful
            | Self::VolumeModifyFailed
            | Self::VolumeModifyCanceled => "Modify",
            Self::SnapshotCreationFailed
            | Self::SnapshotContentCheckandUpdateFailed
            | Self::GroupSnapshotCreationFailed
            | Self::GroupSnapshotContentCheckandUpdateFailed => "Snapshot",
            Self::VolumeFailedDelete
            | Self::VolumeDeleteWaiting
            | Self::SnapshotDeleteError
            | Self::GroupSnapshotDeleteError => "Delete",
            Self::PoolConditionAbnormal
            | Self::PoolConditionNotice
            | Self::PoolConditionNormal
            | Self::VolumeConditionAbnormal
            | Self::VolumeConditionNormal
            | Self::VolumesOrphaned => "Inspect",
            Self::TokenExpiring => "Authenticate",
        }
    }
}

struct PendingEvent {
    reason: Reason,
    note: String,
    about: ObjectReference,
    /// Of an event that is written once by all agents together: what distinguishes it from others about the object.
    mark: Option<&'static str>,
}

/// Accepts events, and never fails.
#[derive(Clone)]
pub struct Events {
    pending: Arc<Mutex<Shares<PendingEvent>>>,
    /// Says that there is something in it, or that nothing will come any more.
    more: mpsc::Sender<()>,
    /// How many events were lost since a loss was last logged.
    lost: Arc<AtomicU64>,
}

impl Events {
    /// Events reported by `driver` on `node`; a task of the current runtime writes them.
    pub fn new(client: Client, driver: &DriverName, node: &str) -> Self {
        let (pending, (more, receiver)) = (Arc::default(), mpsc::channel(1));
        let lost = Arc::new(AtomicU64::new(0));
        let reporter = Reporter { controller: driver.to_string(), instance: Some(node.to_owned()) };
        let waiting = Pending { events: Arc::clone(&pending), more: receiver };
        tokio::spawn(write(client, reporter, waiting, Arc::clone(&lost)));
        Self { pending, more, lost }
    }

    /// Publishes an event about `object`.
    pub fn publish<K: Resource<DynamicType = ()>>(&self, object: &K, reason: Reason, note: impl Into<String>) {
        self.publish_about(object.object_ref(&()), reason, note);
    }

    /// Publishes an event about an object of which only the reference is known.
    pub fn publish_about(&self, about: ObjectReference, reason: Reason, note: impl Into<String>) {
        self.send(about, reason, note.into(), None);
    }

    /// Publishes an event about something that every agent sees, and only one is to say: the API server accepts no
    /// second event with this mark about `object`.
    pub fn publish_once<K>(&self, object: &K, reason: Reason, mark: &'static str, note: impl Into<String>)
    where
        K: Resource<DynamicType = ()>,
    {
        self.send(object.object_ref(&()), reason, note.into(), Some(mark));
    }

    fn send(&self, about: ObjectReference, reason: Reason, mut note: String, mark: Option<&'static str>) {
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.push(owner(&about), PendingEvent { reason, note, about, mark });
        if pending.len() > QUEUE {
            pending.drop_last_of_most();
            self.lost.fetch_add(1, Ordering::Relaxed);
            METRICS.events_dropped.with([]).inc();
        }
        METRICS.events_waiting.with([]).set(pending.len() as f64);
        // If that fails, it has been said already.
        let _ = self.more.try_send(());
    }
}

/// Returns whose an event is: a namespace's, or the kind's of what is in none.
fn owner(about: &ObjectReference) -> String {
    about.namespace.clone().unwrap_or_else(|| format!("/{}", about.kind.as_deref().unwrap_or_default()))
}

/// The events that wait.
struct Pending {
    events: Arc<Mutex<Shares<PendingEvent>>>,
    more: mpsc::Receiver<()>,
}

impl Pending {
    /// The next event; `None` once there will be none any more.
    async fn next(&mut self) -> Option<PendingEvent> {
        loop {
            let is_over = match self.take() {
                None => self.more.recv().await.is_none(),
                next => return next,
            };
            if is_over {
                return self.take();
            }
        }
    }

    fn take(&self) -> Option<PendingEvent> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, next) = events.next(|_| true)?;
        METRICS.events_waiting.with([]).set(events.len() as f64);
        Some(next)
    }
}

async fn write(client: Client, reporter: Reporter, mut pending: Pending, lost: Arc<AtomicU64>) {
    let mut recorder = Recorder::new(client.clone(), reporter.clone());
    let mut notes: HashMap<(String, Reason), String> = HashMap::new();
    let mut writing = FuturesUnordered::new();
    loop {
        let PendingEvent { reason, note, about, mark } = tokio::select! {
            next = pending.next(), if writing.len() < CONCURRENCY => match next {
                Some(event) => event,
                None => break,
            },
            Some(()) = writing.next() => continue,
        };
        match lost.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => warn!(lost, "events were lost: too many were waiting to be written"),
        }
        if let Some(mark) = mark {
            writing.push(write_first(client.clone(), reporter.clone(), reason, note, about, mark).boxed());
            continue;
        }
        let key = (about.uid.clone().unwrap_or_default(), reason);
        if notes.get(&key).is_some_and(|before| *before != note) {
            // A recorder counts repetitions and keeps the first note: an event with a different note is not a
            // repetition.
            recorder = Recorder::new(client.clone(), reporter.clone());
        }
        writing.push(write_one(recorder.clone(), reason, note.clone(), about).boxed());
        if notes.len() >= REMEMBERED {
            notes.clear();
            // It remembers every event of the last minutes, however many there are.
            recorder = Recorder::new(client.clone(), reporter.clone());
        }
        notes.insert(key, note);
    }
    // The agent is stopping: finish what was begun.
    while writing.next().await.is_some() {}
}

async fn write_one(recorder: Recorder, reason: Reason, note: String, about: ObjectReference) {
    let event = Event {
        type_: reason.event_type(),
        reason: format!("{reason:?}"),
        note: Some(note),
        action: reason.action().to_owned(),
        secondary: None,
    };
    // A namespace that is being deleted accepts no events, and that is as it should be.
    if let Err(failure) = request("writing an event", recorder.publish(&event, &about)).await {
        debug!(?reason, "{failure}");
    }
}

/// Writes an event unless another agent has.
async fn write_first(
    client: Client,
    reporter: Reporter,
    reason: Reason,
    note: String,
    about: ObjectReference,
    mark: &'static str,
) {
    let namespace = about.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let event = events::Event {
        metadata: ObjectMeta {
            name: Some(format!("{}.{mark}", about.uid.as_deref().unwrap_or_default())),
            namespace: Some(namespace.clone()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::now())),
        type_: Some(match reason.event_type() {
            EventType::Normal => "Normal".to_owned(),
            EventType::Warning => "Warning".to_owned(),
        }),
        reason: Some(format!("{reason:?}")),
        note: Some(note),
        action: Some(reason.action().to_owned()),
        regarding: Some(about),
        reporting_controller: Some(reporter.controller),
        reporting_instance: reporter.instance,
        ..events::Event::default()
    };
    let events: Api<events::Event> = Api::namespaced(client, &namespace);
    match request("writing an event", events.create(&PostParams::default(), &event)).await {
        Err(failure) if !failure.is_already_exists() => debug!(?reason, "{failure}"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response, StatusCode};
    use http_body_util::BodyExt as _;
    use k8s_openapi::api::core::v1::PersistentVolumeClaim;
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;

    /// An API server that accepts each name once, and what it was sent.
    fn server() -> (Client, Arc<Mutex<Vec<Value>>>) {
        let received = Arc::new(Mutex::new(Vec::<Value>::new()));
        let seen = Arc::clone(&received);
        let service = service_fn(move |request: Request<Body>| {
            let seen = Arc::clone(&seen);
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let event: Value = serde_json::from_slice(&body).unwrap();
                let mut seen = seen.lock().unwrap();
                let is_new = seen.iter().all(|other| other["metadata"]["name"] != event["metadata"]["name"]);
                seen.push(event.clone());
                let (code, answer) = if is_new {
                    (StatusCode::CREATED, event)
                } else {
                    let reason = "AlreadyExists";
                    let status = json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": 409 });
                    (StatusCode::CONFLICT, status)
                };
                let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, std::convert::Infallible>(answer.unwrap())
            }
        });
        (Client::new(service, "default"), received)
    }

    #[tokio::test]
    async fn what_every_agent_sees_is_written_once_and_about_one_object() {
        let (client, received) = server();
        let driver = "bulkhead.csi.local".parse().unwrap();
        let claim = |name: &str| -> PersistentVolumeClaim {
            let metadata = json!({ "namespace": "shop", "name": name, "uid": format!("uid-of-{name}") });
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        for (node, name) in [("a", "data"), ("b", "data"), ("b", "other")] {
            let events = Events::new(client.clone(), &driver, node);
            events.publish_once(&claim(name), Reason::ProvisioningFailed, "unheld", "no node has it");
        }
        while received.lock().unwrap().len() < 3 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let mut received = received.lock().unwrap().clone();
        received.sort_by_key(|event| event["regarding"]["name"].to_string());
        let names: Vec<_> = received.iter().map(|event| event["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["uid-of-data.unheld", "uid-of-data.unheld", "uid-of-other.unheld"]);
        for event in &received {
            let (note, reason, kind) = (&event["note"], &event["reason"], &event["type"]);
            assert_eq!(
                (note, reason, kind),
                (&"no node has it".into(), &"ProvisioningFailed".into(), &"Warning".into())
            );
            // As the admission policy wants it.
            assert_eq!(event["reportingController"], "bulkhead.csi.local");
            assert!(["a", "b"].contains(&event["reportingInstance"].as_str().unwrap()), "{event}");
            assert_eq!(
                (&event["regarding"]["kind"], &event["metadata"]["namespace"]),
                (&"PersistentVolumeClaim".into(), &"shop".into())
            );
        }
    }

    #[tokio::test]
    async fn a_flood_of_one_namespace_loses_its_own_events_and_delays_no_other() {
        let (client, received) = server();
        let events = Events::new(client, &"bulkhead.csi.local".parse().unwrap(), "a");
        let claim = |namespace: &str, name: String| -> PersistentVolumeClaim {
            let metadata = json!({ "namespace": namespace, "name": name, "uid": name });
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        for number in 0..2 * QUEUE {
            events.publish(&claim("flood", format!("flood-{number}")), Reason::ProvisioningFailed, "no");
        }
        events.publish(&claim("quiet", "data".to_owned()), Reason::ProvisioningFailed, "no");
        assert_eq!(events.pending.lock().unwrap().len(), QUEUE);
        drop(events);
        while received.lock().unwrap().len() < QUEUE {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let place = received.lock().unwrap().iter().position(|event| event["regarding"]["name"] == "data");
        assert!(place.unwrap() < 10, "{place:?}");
    }
}
