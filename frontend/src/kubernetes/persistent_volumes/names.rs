//! Which PersistentVolumes name a volume of this node, as the API server says at this moment: whoever is about to delete
//! the volume must know all of them.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use bulkhead_model::objects::names::VOLUME_POLICY;
use bulkhead_model::objects::persistent_volume;
use bulkhead_model::volumes::Place;
use bulkhead_protocol::DriverName;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client, ResourceExt};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::pages::list;
use crate::kubernetes::context::{AgentIdentity, Context};
use crate::kubernetes::labels::watch_mode::settled;

/// The last listing. All that wait while one is made share the next one, so a thousand deletions need few.
#[derive(Default)]
pub struct Names {
    last: Mutex<Option<Listing>>,
    unlabelled: Mutex<Option<Unlabelled>>,
}

/// The objects that name each volume, as of a moment.
struct Listing {
    begun: Instant,
    objects: Arc<Named>,
}

/// By the id of a volume, the objects that name it: each one's name and uid.
type Named = HashMap<String, Vec<(String, String)>>;

/// Those without the label, listed when the policy that sets it was in force: there will be no more of them.
struct Unlabelled {
    /// When they were listed, or it was last asked whether the policy is in force still.
    begun: Instant,
    /// Which policy it was, if it was in force.
    policy: Option<String>,
    objects: Named,
}

impl Names {
    /// Another object than `object` that names `volume` and needs it, in listings of all that there were or came after
    /// this call.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn other_than(
        &self,
        context: &Context,
        object: &PersistentVolume,
        volume: &str,
    ) -> Result<Option<String>, Failure> {
        let AgentIdentity { driver, place, .. } = &context.agent;
        let whose = Whose { client: &context.client, driver, place };
        let (asked, uid) = (Instant::now(), persistent_volume::uid(object));
        // In this order: what gets the label in the meantime is seen by the second.
        if let Some(other) = self.without_label(&whose, asked, volume, uid).await? {
            return Ok(Some(other));
        }
        Ok(other(&*self.labelled(&whose, asked).await?, volume, uid))
    }

    async fn labelled(&self, whose: &Whose<'_>, asked: Instant) -> Result<Arc<Named>, Failure> {
        let mut last = self.last.lock().await;
        if let Some(listing) = last.as_ref().filter(|listing| listing.begun >= asked) {
            return Ok(Arc::clone(&listing.objects));
        }
        let begun = Instant::now();
        // An empty label is that of an object which names no single node.
        let labels = format!("{} in (,{})", whose.place.key(), whose.place.value());
        let objects = Arc::new(whose.list(&labels).await?);
        *last = Some(Listing { begun, objects: Arc::clone(&objects) });
        Ok(objects)
    }

    /// Another object without the label that names `volume`. Those of other drivers lack it too: where the policy makes
    /// sure that there will be no more of ours, they are listed once, and again only if one stands in the way.
    async fn without_label(
        &self,
        whose: &Whose<'_>,
        asked: Instant,
        volume: &str,
        uid: &str,
    ) -> Result<Option<String>, Failure> {
        let mut known = self.unlabelled.lock().await;
        let has_no_other = |known: &&mut Unlabelled| other(&known.objects, volume, uid).is_none();
        if known.as_mut().filter(|known| known.begun >= asked).as_ref().is_some_and(has_no_other) {
            return Ok(None);
        }
        let begun = Instant::now();
        let policy = match settled(whose.client, VOLUME_POLICY).await {
            // The rules of an earlier release do not grant it.
            Err(failure) if failure.is_forbidden() => None,
            policy => policy?,
        };
        let same = known.as_mut().filter(|known| policy.is_some() && known.policy == policy);
        if let Some(known) = same.filter(has_no_other) {
            known.begun = begun;
            return Ok(None);
        }
        let objects = whose.list(&format!("!{}", whose.place.key())).await?;
        let other = other(&objects, volume, uid);
        *known = Some(Unlabelled { begun, policy, objects });
        Ok(other)
    }
}

/// The name of an object that names `volume`, other than the one with that uid.
fn other(objects: &Named, volume: &str, uid: &str) -> Option<String> {
    let others = objects.get(volume).into_iter().flatten();
    others.filter(|(_, of)| of != uid).map(|(name, _)| name.clone()).next()
}

/// Whose objects are looked at, and where.
struct Whose<'a> {
    client: &'a Client,
    driver: &'a DriverName,
    place: &'a Place,
}

impl Whose<'_> {
    /// Lists those that match `labels`.
    async fn list(&self, labels: &str) -> Result<Named, Failure> {
        let mut found = Named::new();
        let objects: Api<PersistentVolume> = Api::all(self.client.clone());
        let mut objects = pin!(list("listing the node's PersistentVolumes", objects, Some(labels)));
        while let Some(object) = objects.try_next().await? {
            if needs_its_volume(&object)
                && let Some(volume) = persistent_volume::named_volume(&object, self.driver, self.place)
            {
                let named = (object.name_any(), persistent_volume::uid(&object).to_owned());
                found.entry(volume.to_owned()).or_default().push(named);
            }
        }
        Ok(found)
    }
}

/// Returns whether an object stands in the way of deleting the volume that it names. One that is released, and deleted
/// when it is, does not: two such objects would wait for each other.
pub fn needs_its_volume(object: &PersistentVolume) -> bool {
    !(persistent_volume::is_deleted_when_released(object) && persistent_volume::phase(object) == "Released")
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use tower::service_fn;

    use super::*;

    /// An API server with this object without the label, where the policy is bound since then, and how often those without
    /// the label were listed.
    fn server(object: Value, bound: Option<&'static str>) -> (Client, Arc<AtomicUsize>) {
        let lists = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&lists);
        let service = service_fn(move |request: Request<Body>| {
            let is_unlabelled = request.uri().query().is_some_and(|query| query.contains("labelSelector=%21"));
            counted.fetch_add(usize::from(is_unlabelled), Ordering::Relaxed);
            let (code, answer) = match (request.uri().path().ends_with("/bulkhead-volumes"), bound) {
                (true, Some(since)) => (200, json!({ "metadata": { "uid": "policy", "creationTimestamp": since } })),
                (true, None) => (404, json!({ "kind": "Status", "reason": "NotFound", "code": 404 })),
                (false, _) if is_unlabelled => (200, json!({ "metadata": {}, "items": [object.clone()] })),
                (false, _) => (200, json!({ "metadata": {}, "items": [] })),
            };
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        (Client::new(service, "default"), lists)
    }

    #[tokio::test]
    async fn what_others_have_is_listed_once_where_the_policy_labels_all_of_ours() {
        let driver: DriverName = "bulkhead.csi.local".parse().unwrap();
        let place = Place::new(&driver, "here");
        // It could be used on any node.
        let by_hand = json!({
            "metadata": { "name": "by-hand", "uid": "1" },
            "spec": { "csi": { "driver": "bulkhead.csi.local", "volumeHandle": "kept" } },
        });
        for (bound, expected) in [(Some("2026-01-01T00:00:00Z"), 1), (None, 5)] {
            let (client, lists) = server(by_hand.clone(), bound);
            let (names, whose) = (Names::default(), Whose { client: &client, driver: &driver, place: &place });
            for _ in 0..5 {
                assert_eq!(names.without_label(&whose, Instant::now(), "gone", "own").await.unwrap(), None);
            }
            assert_eq!(lists.load(Ordering::Relaxed), expected, "{bound:?}");
            let found = names.without_label(&whose, Instant::now(), "kept", "own").await.unwrap();
            assert_eq!(found.as_deref(), Some("by-hand"));
            assert_eq!(lists.load(Ordering::Relaxed), expected + 1, "it might have been gone by now");
        }
    }

    #[tokio::test]
    async fn deletions_that_wait_together_share_a_listing() {
        let driver: DriverName = "bulkhead.csi.local".parse().unwrap();
        let (place, (client, lists)) =
            (Place::new(&driver, "here"), server(json!({ "metadata": {}, "spec": {} }), None));
        let (names, whose) = (Names::default(), Whose { client: &client, driver: &driver, place: &place });
        let asked = Instant::now();
        let all = (0..1000).map(|_| names.without_label(&whose, asked, "gone", "own"));
        assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
        assert_eq!(lists.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_object_that_is_to_be_deleted_does_not_need_its_volume() {
        let needs = |policy: &str, phase: &str| {
            let object = json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "a" },
                "spec": { "persistentVolumeReclaimPolicy": policy }, "status": { "phase": phase },
            });
            needs_its_volume(&serde_json::from_value(object).unwrap())
        };
        assert!(!needs("Delete", "Released"));
        for (policy, phase) in
            [("Delete", "Bound"), ("Delete", "Available"), ("Retain", "Released"), ("Retain", "Bound")]
        {
            assert!(needs(policy, phase), "{policy} {phase}");
        }
    }
}
