//! What an agent watches in a term.

use std::sync::Arc;

use bulkhead_model::objects::claim;
use bulkhead_model::objects::group_content::VolumeGroupSnapshotContent;
use bulkhead_model::objects::snapshot_content::VolumeSnapshotContent;
use futures::{Stream, StreamExt, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::Notify;

use super::api::backoff::Interruptions;
use super::api::first_lists::FirstLists;
use super::api::pace::Pace;
use super::api::watch::{config, follow};
use super::context::{AgentIdentity, Context, Stores};
use super::intervals::Intervals;
use super::known::Known;
use super::labels::scope::Scope;
use super::labels::watch::watch;
use super::ledger::Ledger;
use super::memory::Memory;
use super::reconcile::Changes;
use super::term::Term;
use crate::readiness::Readiness;
use crate::volumes::Volumes;

/// The base of a term's controllers, and what each has to look at.
pub struct Watches {
    /// The base.
    pub context: Arc<Context>,
    /// Notified when the API server has gone back in time, so that what was written lately may be lost.
    pub rewound: Arc<Notify>,
    /// The claims that have changed.
    pub claims: Changes<PersistentVolumeClaim>,
    /// The PersistentVolumes that have.
    pub persistent_volumes: Changes<PersistentVolume>,
    /// The objects of snapshots that have.
    pub contents: Changes<VolumeSnapshotContent>,
    /// Those of groups of snapshots that have.
    pub groups: Changes<VolumeGroupSnapshotContent>,
}

/// Begins to watch what concerns `agent`, whose node has `volumes` with this ledger, until `term` ends.
pub fn begin(
    client: Client,
    pace: Pace,
    agent: AgentIdentity,
    volumes: (Volumes, Ledger),
    intervals: Intervals,
    readiness: &Readiness,
    term: &mut Term,
) -> Watches {
    let place = &agent.place;
    let (driver, node) = (agent.driver.to_string(), agent.node.name.clone());
    let scope = Scope { driver, node, place: place.clone(), intervals };
    let (classes, class_writer) = Known::new();
    let (claims, claim_writer) = Known::new();
    let (persistent_volumes, persistent_volume_writer) = Known::new();
    let (contents, content_writer) = Known::new();
    let (groups, group_writer) = Known::new();
    let class_events = watcher(Api::<StorageClass>::all(client.clone()), config()).backoff(Interruptions::default());
    let persistent_volume_events =
        watcher(Api::<PersistentVolume>::all(client.clone()), config().labels(&place.to_string()))
            .backoff(Interruptions::default());
    let (claim_events, claim_watch) = watch(client.clone(), scope.clone());
    let (content_events, content_watch) = watch(client.clone(), scope.clone());
    let (group_events, group_watch) = watch(client.clone(), scope);
    term.run("watch of claims", claim_watch);
    term.run("watch of snapshots", content_watch);
    term.run("watch of groups of snapshots", group_watch);
    let (memory, rewound) = (Arc::new(Memory::default()), Arc::new(Notify::new()));
    let forget = || {
        let (memory, rewound) = (Arc::clone(&memory), Arc::clone(&rewound));
        move || {
            memory.forget_written();
            rewound.notify_one();
        }
    };
    let (lists, readiness) = (FirstLists::default(), || readiness.clone());
    let class_changes = follow(readiness(), lists.clone(), class_writer, class_events, forget());
    let claim_changes = follow(readiness(), lists.clone(), claim_writer, claim_events, forget());
    let persistent_volume_changes =
        follow(readiness(), lists.clone(), persistent_volume_writer, persistent_volume_events, forget()).boxed();
    let content_changes = follow(readiness(), lists.clone(), content_writer, content_events, forget()).boxed();
    let group_changes = follow(readiness(), lists.clone(), group_writer, group_events, forget()).boxed();
    let stores = Stores { classes, claims, persistent_volumes, contents, groups, lists, end: term.end().clone() };
    let context = Arc::new(Context::new(client, pace, agent, volumes, stores, memory, intervals));
    let of_changed_classes = waiting_claims(Arc::clone(&context), class_changes);
    Watches {
        claims: stream::select(claim_changes, of_changed_classes).boxed(),
        persistent_volumes: persistent_volume_changes,
        contents: content_changes,
        groups: group_changes,
        context,
        rewound,
    }
}

/// The claims that a change to their class may help.
fn waiting_claims(
    context: Arc<Context>,
    classes: impl Stream<Item = ObjectRef<StorageClass>> + Send + 'static,
) -> Changes<PersistentVolumeClaim> {
    classes
        .flat_map(move |class| {
            context.capacity_changed.notify_one();
            // The class of a claim that is watched without its contents is unknown.
            let waiting = context.stores.claims.all().filter(|waiting| {
                let is_concerned = waiting.spec.is_none() || claim::class(waiting) == Some(&class.name);
                is_concerned && claim::persistent_volume(waiting).is_none() && !claim::is_bound(waiting)
            });
            stream::iter(waiting.map(|waiting| ObjectRef::from_obj(&waiting)).collect::<Vec<_>>())
        })
        .boxed()
}
