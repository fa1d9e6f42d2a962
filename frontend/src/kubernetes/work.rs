//! What an agent does in a term: controllers look at what changes, and the node's state is reported.

use std::future::Future;
use std::sync::Arc;

use futures::future;

use super::api::credential::Credential;
use super::api::csi_node;
use super::capacity::reporter::CapacityReporter;
use super::capacity::schedule;
use super::claims::controller::ClaimController;
use super::claims::unservable;
use super::condition_events;
use super::context::Context;
use super::heartbeat::{self, Record};
use super::holdings;
use super::persistent_volumes::reclaimer::Reclaimer;
use super::persistent_volumes::{census, orphans, owners};
use super::reconcile;
use super::renewal;
use super::snapshots::controller::ContentController;
use super::term::Term;
use super::watches::Watches;
use crate::readiness::Readiness;

/// Begins all work on what `watches` bring, and to renew `credential`, until `term` ends.
pub fn begin(watches: Watches, credential: Option<Credential>, readiness: &Readiness, term: &mut Term) {
    let Watches { context, rewound, claims, persistent_volumes, contents, groups } = watches;
    let capacity = Arc::new(CapacityReporter::new(Arc::clone(&context), rewound));
    let end = || context.stores.end.clone();

    let controller = Arc::new(ClaimController::new(Arc::clone(&context), Arc::clone(&capacity)));
    let controlled = reconcile::run(controller, context.stores.claims.clone(), claims, end());
    term.control("controller of claims", controlled);
    let controller = Arc::new(Reclaimer::new(Arc::clone(&context)));
    let store = context.stores.persistent_volumes.clone();
    let controlled = reconcile::run(controller, store, persistent_volumes, end());
    term.control("controller of PersistentVolumes", controlled);
    let controller = Arc::new(ContentController::new(Arc::clone(&context)));
    let controlled = reconcile::run(controller, context.stores.contents.clone(), contents, end());
    term.control("controller of snapshots", controlled);
    let controller = Arc::new(ContentController::new(Arc::clone(&context)));
    let controlled = reconcile::run(controller, context.stores.groups.clone(), groups, end());
    term.control("controller of groups of snapshots", controlled);

    let (registered, told) = (Arc::clone(&context), readiness.clone());
    term.run("look at the kubelet's registration", async move {
        let Context { client, agent, intervals, .. } = &*registered;
        csi_node::look(client, &agent.driver, &agent.node.name, intervals.registration, &told).await;
    });
    let mut once_listed = Background { term, context: &context };
    once_listed.run("search for orphans", |context| async move { orphans::run(&context).await });
    once_listed.run("census", |context| async move { census::run(&context).await });
    once_listed.run("what namespaces have", |context| async move { holdings::run(&context).await });
    once_listed.run("notes of owners", |context| async move { owners::run(&context).await });
    let (capacity_of_lease, readiness) = (Arc::clone(&capacity), readiness.clone());
    once_listed.run("reports", |context| async move {
        let record = Record::default();
        let before = heartbeat::reported_before(&context, &record).await;
        let events = condition_events::report(&context, &record, before);
        future::join(events, heartbeat::run(&context, &record, &capacity_of_lease, &readiness)).await;
    });
    let reported = Arc::clone(&capacity);
    once_listed.run("search for claims of classes that no node can serve", |context| async move {
        unservable::run(&context, &reported).await;
    });
    once_listed.run("reports of capacity", |_| async move { schedule::run(&capacity).await });
    if let Some(credential) = credential {
        once_listed.run("renewal of the token", |context| async move { renewal::run(&context, &credential).await });
    }
}

/// What is done without being asked, once PersistentVolumes and classes have been listed.
struct Background<'a> {
    term: &'a mut Term,
    context: &'a Arc<Context>,
}

impl Background<'_> {
    fn run<F>(&mut self, name: &'static str, work: impl FnOnce(Arc<Context>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (context, work) = (Arc::clone(self.context), work(Arc::clone(self.context)));
        self.term.run(name, async move {
            if context.stores.are_complete().await {
                work.await;
            }
        });
    }
}
