//! What users read about their claims and volumes: events, with the reasons that operators alert on.

use std::collections::HashMap;

use bulkhead_protocol::DriverName;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tokio::sync::mpsc;
use tracing::debug;

use super::failure::ask;

/// How many events may wait to be written. One more is lost: no work ever waits for an event.
const QUEUE: usize = 1024;

/// The longest note that the API accepts, in bytes (events.k8s.io/v1).
const LONGEST_NOTE: usize = 1024;

/// How many notes are remembered to tell a repetition from news.
const REMEMBERED: usize = 1024;

/// Why something is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A claim has a volume.
    ProvisioningSucceeded,
    /// A claim could not be given one.
    ProvisioningFailed,
    /// A claim is somebody else's to fill.
    Provisioning,
    /// A volume begins to grow.
    Resizing,
    /// It has grown.
    VolumeResizeSuccessful,
    /// It could not.
    VolumeResizeFailed,
    /// A released volume could not be deleted.
    VolumeFailedDelete,
}

impl Reason {
    fn is_bad(self) -> bool {
        matches!(self, Self::ProvisioningFailed | Self::VolumeResizeFailed | Self::VolumeFailedDelete)
    }

    fn action(self) -> &'static str {
        match self {
            Self::ProvisioningSucceeded | Self::ProvisioningFailed | Self::Provisioning => "Provision",
            Self::Resizing | Self::VolumeResizeSuccessful | Self::VolumeResizeFailed => "Resize",
            Self::VolumeFailedDelete => "Delete",
        }
    }
}

struct Notice {
    reason: Reason,
    note: String,
    about: ObjectReference,
}

/// Takes events, and never fails.
#[derive(Clone)]
pub struct Events(mpsc::Sender<Notice>);

impl Events {
    /// Events in the name of `driver` on `node`; a task of the current runtime writes them.
    pub fn new(client: Client, driver: &DriverName, node: &str) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let reporter = Reporter { controller: driver.to_string(), instance: Some(node.to_owned()) };
        tokio::spawn(write(client, reporter, receiver));
        Self(sender)
    }

    /// Tells `note` about `object`.
    pub fn tell<K: Resource<DynamicType = ()>>(&self, object: &K, reason: Reason, note: impl Into<String>) {
        let about = object.object_ref(&());
        let mut note = note.into();
        note.truncate(note.floor_char_boundary(LONGEST_NOTE));
        if self.0.try_send(Notice { reason, note, about }).is_err() {
            debug!(?reason, "an event is lost: too many are waiting");
        }
    }
}

async fn write(client: Client, reporter: Reporter, mut notices: mpsc::Receiver<Notice>) {
    let mut recorder = Recorder::new(client.clone(), reporter.clone());
    let mut notes: HashMap<(String, Reason), String> = HashMap::new();
    while let Some(Notice { reason, note, about }) = notices.recv().await {
        let key = (about.uid.clone().unwrap_or_default(), reason);
        if notes.get(&key).is_some_and(|before| *before != note) {
            // A recorder counts repetitions and keeps the first note: what has another one is no repetition.
            recorder = Recorder::new(client.clone(), reporter.clone());
        }
        let event = Event {
            type_: if reason.is_bad() { EventType::Warning } else { EventType::Normal },
            reason: format!("{reason:?}"),
            note: Some(note.clone()),
            action: reason.action().to_owned(),
            secondary: None,
        };
        // A namespace that is being deleted takes no events, and that is as it should be.
        if let Err(error) = ask("writing an event", recorder.publish(&event, &about)).await {
            debug!(?reason, "{error}");
        }
        if notes.len() >= REMEMBERED {
            notes.clear();
        }
        notes.insert(key, note);
    }
}
