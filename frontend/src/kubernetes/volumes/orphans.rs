//! Volumes that were made and then forgotten: by an agent that died, or an API server that failed, at the wrong time.
//!
//! A volume goes only when it is certain that nobody wants it: there is no claim that it was made for, no
//! PersistentVolume that names it, and it has never been published, so that nothing was ever written to it. The last
//! is for the privileged helper to judge.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_protocol::{ErrorKind, VolumeId};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::ListParams;
use tokio::time::sleep;
use tracing::{info, warn};

use crate::kubernetes::api::backoff::random;
use crate::kubernetes::api::failure::{Failure, ask};
use crate::kubernetes::context::Context;
use crate::kubernetes::objects::claim;
use crate::kubernetes::objects::persistent_volume::is_elsewhere;

/// How often volumes are compared with what the API server knows.
const PERIOD: Duration = Duration::from_secs(600);

/// How long after a failure it is tried again.
const RETRIED: Duration = Duration::from_secs(15);

/// How long what is under way may take before a comparison that something has asked for.
const SETTLING: Duration = Duration::from_secs(5);

/// How many objects the API server sends at a time.
const PAGE: u32 = 500;

/// How many volumes the helper is asked for at a time.
const VOLUMES: usize = 500;

/// Settles for as long as it is polled.
pub async fn run(context: &Context) {
    // Volumes that are kept, of which the operator was told. To look for their owners again would be of no use.
    let mut kept = HashSet::new();
    loop {
        sleep(SETTLING).await;
        context.forget_the_gone();
        let pause = match settle(context, &mut kept).await {
            Ok(()) => PERIOD,
            Err(failure) => {
                warn!("forgotten volumes are not looked for: {failure}");
                failure.retry_after().unwrap_or(RETRIED)
            }
        };
        tokio::select! {
            () = sleep(pause + random(pause / 2)) => {}
            () = context.unsettled.notified() => {}
        }
    }
}

async fn settle(context: &Context, kept: &mut HashSet<VolumeId>) -> Result<(), Failure> {
    // The volumes first, then claims, then objects: what is made meanwhile is made in this order too.
    let mut forgotten = unknown(context).await?;
    forgotten.retain(|volume| !kept.contains(volume));
    if forgotten.is_empty() {
        return Ok(());
    }
    // Those that are only just being made are known a little later, and cost the API server nothing.
    sleep(SETTLING).await;
    let still = unknown(context).await?;
    forgotten.retain(|volume| still.contains(volume));
    if forgotten.is_empty() {
        return Ok(());
    }
    each_claim(context, |uid| {
        forgotten.retain(|volume| claim_uid(volume) != Some(uid));
    })
    .await?;
    if forgotten.is_empty() {
        return Ok(());
    }
    each_handle(context, |handle| {
        forgotten.retain(|volume| volume.as_str() != handle);
    })
    .await?;
    for volume in forgotten {
        match context.volumes.discard(volume.clone()).await {
            Ok(()) => {
                info!(%volume, "deleted: it was never used, and its claim is gone");
                context.publisher.nudge();
            }
            Err(fault) if fault.is(ErrorKind::Refused) => {
                warn!(%volume, "kept, though neither a claim nor a PersistentVolume knows it, since it may hold data: {fault}");
                kept.insert(volume);
            }
            Err(fault) => warn!(%volume, "not deleted, though nobody knows it: {fault}"),
        }
    }
    Ok(())
}

/// Volumes that were made for claims, and neither a PersistentVolume nor a claim of this node's is for.
async fn unknown(context: &Context) -> Result<Vec<VolumeId>, Failure> {
    let handle = |object: &Arc<PersistentVolume>| Some(object.spec.as_ref()?.csi.as_ref()?.volume_handle.clone());
    let mut known: HashSet<String> = context.objects.state().iter().filter_map(handle).collect();
    known.extend(context.claims.state().iter().map(|claim| claim::volume_name(claim)));
    let mut unknown = Vec::new();
    let mut token = String::new();
    loop {
        let page = context.volumes.list(VOLUMES, &token).await?;
        let volumes = page.volumes.into_iter().map(|listed| listed.volume);
        unknown.extend(volumes.filter(|volume| claim_uid(volume).is_some() && !known.contains(volume.as_str())));
        match page.next {
            Some(next) => token = next,
            None => return Ok(unknown),
        }
    }
}

/// The uid of the claim that a volume of that id was made for, if it was made for one.
fn claim_uid(volume: &VolumeId) -> Option<&str> {
    let uid = volume.as_str().strip_prefix("pvc-")?;
    let shape = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    (uid.len() == 36 && uid.bytes().enumerate().all(shape)).then_some(uid)
}

async fn each_claim(context: &Context, mut see: impl FnMut(&str)) -> Result<(), Failure> {
    let claims: Api<PersistentVolumeClaim> = Api::all(context.client.clone());
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = ask("listing all claims", claims.list_metadata(&parameters)).await?;
        for partial in page.items {
            let claim = PersistentVolumeClaim { metadata: partial.metadata, ..PersistentVolumeClaim::default() };
            // One that waits for another node has no use for a volume on this one.
            if claim::selected_node(&claim).is_none_or(|node| node == context.node.name) {
                see(claim::uid(&claim));
            }
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(()),
        }
    }
}

async fn each_handle(context: &Context, mut see: impl FnMut(&str)) -> Result<(), Failure> {
    let objects: Api<PersistentVolume> = Api::all(context.client.clone());
    let mut parameters = ListParams::default().limit(PAGE);
    loop {
        let page = ask("listing all PersistentVolumes", objects.list(&parameters)).await?;
        let handles = page.items.iter().filter_map(|object| {
            let csi = object.spec.as_ref()?.csi.as_ref()?;
            // One that is bound to another node is another volume, whatever its name.
            let may_be_here = csi.driver == context.driver.as_str() && !is_elsewhere(object, &context.place);
            may_be_here.then_some(csi.volume_handle.as_str())
        });
        handles.for_each(&mut see);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_made_for_claims() {
        let uid = |id: &str| claim_uid(&id.parse().unwrap()).map(str::to_owned);
        let own = "0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a111";
        assert_eq!(uid(&format!("pvc-{own}")).as_deref(), Some(own));
        for foreign in ["pvc-1", "data", "pvc-0d6f2a56-8c1e-4a0e-9d7b-0f4bb8c6a11g", "v-0d6f2a56"] {
            assert_eq!(uid(foreign), None, "{foreign}");
        }
    }
}
