//! Watching the policies while an agent works: what becomes of them is known at once, and looking at them costs nothing.

use std::fmt::Debug;
use std::pin::pin;

use bulkhead_model::objects::names;
use bulkhead_model::policies::{by_name, judge};
use futures::{Stream, StreamExt};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::serde::de::DeserializeOwned;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Store, store};
use kube::runtime::watcher::{Error, Event};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource};
use tracing::debug;

use crate::kubernetes::api::backoff::Interruptions;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::first_lists::FirstLists;
use crate::kubernetes::api::watch::config;

/// How often in a row the API server has to say that the agent may not look at them. One that is starting says so before
/// it knows the roles.
const FORBIDDEN: u32 = 4;

/// Waits until a policy is found not to be in force any more, or may not be looked at, and returns why. An API server that
/// does not answer says nothing about its policies, and takes no writes either.
///
/// Their first lists are expected among `lists`.
pub async fn lost(client: &Client, account: &str, driver: &str, lists: &FirstLists) -> Failure {
    let listed = [ValidatingAdmissionPolicy::plural(&()), ValidatingAdmissionPolicyBinding::plural(&())];
    listed.iter().for_each(|resource| lists.expect(resource));
    let (mut policies, mut bindings) = (Watched::new(), Watched::new());
    let mut of_policies = pin!(events::<ValidatingAdmissionPolicy>(client, driver));
    let mut of_bindings = pin!(events::<ValidatingAdmissionPolicyBinding>(client, driver));
    loop {
        let seen = tokio::select! {
            Some(event) = of_policies.next() => policies.take(event),
            Some(event) = of_bindings.next() => bindings.take(event),
            else => std::future::pending().await,
        };
        if let Err(failure) = seen {
            return failure;
        }
        for (resource, is_complete) in listed.iter().zip([policies.is_complete, bindings.is_complete]) {
            if is_complete {
                lists.complete(resource);
            }
        }
        if let (Some(policies), Some(bindings)) = (policies.objects(), bindings.objects())
            && let Err(flaw) = judge(account, driver, &by_name(policies), &by_name(bindings))
        {
            return Failure::Refused(flaw);
        }
    }
}

fn events<K>(client: &Client, driver: &str) -> impl Stream<Item = Result<Event<K>, Error>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let selected = config().any_semantic().labels(&names::confines_agents(&driver));
    watcher(Api::all(client.clone()), selected).backoff(Interruptions::default())
}

/// What a watch has shown.
struct Watched<K: Resource<DynamicType = ()> + Clone + 'static> {
    store: Store<K>,
    writer: Writer<K>,
    is_complete: bool,
    forbidden: u32,
}

impl<K: Resource<DynamicType = ()> + Clone + Debug + 'static> Watched<K> {
    fn new() -> Self {
        let (store, writer) = store();
        Self { store, writer, is_complete: false, forbidden: 0 }
    }

    /// Takes what the watch says.
    ///
    /// # Errors
    /// When the agent may not watch.
    fn take(&mut self, event: Result<Event<K>, Error>) -> Result<(), Failure> {
        match event {
            Ok(event) => {
                // The watcher says this before it tries to list, whatever comes of it.
                if !matches!(event, Event::Init) {
                    self.forbidden = 0;
                }
                self.is_complete |= matches!(event, Event::InitDone);
                self.writer.apply_watcher_event(&event);
            }
            Err(Error::InitialListFailed(error) | Error::WatchStartFailed(error) | Error::WatchFailed(error)) => {
                let failure = Failure::Api { operation: super::LOOKING, error: Box::new(error) };
                self.forbidden = if failure.is_forbidden() { self.forbidden + 1 } else { 0 };
                if self.forbidden >= FORBIDDEN {
                    return Err(failure);
                }
                debug!("{failure}");
            }
            Err(error) => debug!("watching the agents' admission policies is interrupted: {error}"),
        }
        Ok(())
    }

    /// All objects, once they have been listed.
    fn objects(&self) -> Option<impl Iterator<Item = K> + use<K>> {
        self.is_complete.then(|| self.store.state().into_iter().map(|object| (*object).clone()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn forbidden() -> Result<Event<ValidatingAdmissionPolicy>, Error> {
        let status = json!({ "code": 403, "reason": "Forbidden", "message": "no" });
        Err(Error::InitialListFailed(kube::Error::Api(Box::new(from_value(status).unwrap()))))
    }

    #[test]
    fn a_list_counts_once_it_is_complete() {
        let mut watched = Watched::<ValidatingAdmissionPolicy>::new();
        let policy: ValidatingAdmissionPolicy = from_value(json!({ "metadata": { "name": "a" } })).unwrap();
        watched.take(Ok(Event::Init)).unwrap();
        watched.take(Ok(Event::InitApply(policy))).unwrap();
        assert!(watched.objects().is_none());
        watched.take(Ok(Event::InitDone)).unwrap();
        watched.take(Ok(Event::Init)).unwrap();
        assert_eq!(watched.objects().unwrap().count(), 1, "the next one is not complete");
    }

    #[test]
    fn one_refusal_is_not_believed() {
        let mut watched = Watched::<ValidatingAdmissionPolicy>::new();
        for _ in 0..3 {
            watched.take(forbidden()).unwrap();
        }
        watched.take(Ok(Event::InitDone)).unwrap();
        for _ in 0..3 {
            watched.take(Ok(Event::Init)).unwrap();
            watched.take(forbidden()).unwrap();
        }
        watched.take(Ok(Event::Init)).unwrap();
        assert!(watched.take(forbidden()).unwrap_err().is_forbidden());
    }
}
