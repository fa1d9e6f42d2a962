//! Which PersistentVolumes name a volume of this node, as the API server says at this moment: whoever is about to delete
//! the volume must know all of them.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;

use bulkhead_model::objects::persistent_volume;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::ResourceExt;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::pages::list;
use crate::kubernetes::context::Context;

/// The last listing. All that wait while one is made share the next one, so a thousand deletions need few.
#[derive(Default)]
pub struct Names(Mutex<Option<Listing>>);

/// The objects that name each volume, as of a moment.
struct Listing {
    begun: Instant,
    objects: Arc<HashMap<String, Vec<Named>>>,
}

/// An object that names a volume.
struct Named {
    name: String,
    uid: String,
}

impl Names {
    /// Another object than `object` that names `volume` and needs it, in a listing that begins after this call.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn other_than(
        &self,
        context: &Context,
        object: &PersistentVolume,
        volume: &str,
    ) -> Result<Option<String>, Failure> {
        let objects = self.since(context, Instant::now()).await?;
        let others = objects.get(volume).into_iter().flatten();
        Ok(others.filter(|named| named.uid != persistent_volume::uid(object)).map(|named| named.name.clone()).next())
    }

    async fn since(&self, context: &Context, asked: Instant) -> Result<Arc<HashMap<String, Vec<Named>>>, Failure> {
        let mut last = self.0.lock().await;
        if let Some(listing) = last.as_ref().filter(|listing| listing.begun >= asked) {
            return Ok(Arc::clone(&listing.objects));
        }
        let begun = Instant::now();
        let objects = Arc::new(read(context).await?);
        *last = Some(Listing { begun, objects: Arc::clone(&objects) });
        Ok(objects)
    }
}

/// The objects with the node's label, and those without any: made by hand, where no policy adds it.
async fn read(context: &Context) -> Result<HashMap<String, Vec<Named>>, Failure> {
    let (labelled, unlabelled) = (context.agent.place.to_string(), format!("!{}", context.agent.place.key()));
    let of = |labels: &str| list("listing the node's PersistentVolumes", context.persistent_volumes(), Some(labels));
    let mut found: HashMap<String, Vec<Named>> = HashMap::new();
    let mut objects = pin!(of(&labelled).chain(of(&unlabelled)));
    while let Some(object) = objects.try_next().await? {
        if needs_its_volume(&object)
            && let Some(volume) = persistent_volume::named_volume(&object, &context.agent.driver, &context.agent.place)
        {
            let named = Named { name: object.name_any(), uid: persistent_volume::uid(&object).to_owned() };
            found.entry(volume.to_owned()).or_default().push(named);
        }
    }
    Ok(found)
}

/// Returns whether an object stands in the way of deleting the volume that it names. One that is released, and deleted
/// when it is, does not: two such objects would wait for each other.
pub fn needs_its_volume(object: &PersistentVolume) -> bool {
    !(persistent_volume::is_deleted_when_released(object) && persistent_volume::phase(object) == "Released")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
