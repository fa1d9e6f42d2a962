//! Looking for claims without the policy's label.

use std::pin::pin;

use bulkhead_model::objects::claim;
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tracing::warn;

use super::scope::{includes, without_contents};
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::pages::list_metadata;
use crate::kubernetes::api::request::{if_unchanged, request};
use crate::kubernetes::labels::scope::Scope;
use crate::kubernetes::labels::unlabelled::Found;

/// Finds the claims in `scope` without the label. Those of this node get it, and the watch reports them from then on.
/// Those that no node has yet are returned: when a node takes one, that write triggers the policy.
pub async fn find(client: &Client, scope: &Scope) -> Found<PersistentVolumeClaim> {
    let claims: Api<PersistentVolumeClaim> = Api::all(client.clone());
    let labels = format!("!{}", scope.place.key());
    let mut partials = pin!(list_metadata("listing claims without a label", claims, Some(&labels)));
    let (mut free, mut seen, mut has_failed) = (Vec::new(), 0_u32, false);
    loop {
        let partial = match partials.try_next().await {
            Ok(Some(partial)) => partial,
            Ok(None) if has_failed => return Found::incomplete(free),
            Ok(None) => return Found::among(seen, free),
            Err(failure) => {
                warn!("{failure}");
                return Found::incomplete(free);
            }
        };
        seen = seen.saturating_add(1);
        let claim = without_contents(partial);
        if !includes(scope, &claim) {
            continue;
        }
        if claim::selected_node(&claim).is_some() {
            // One that cannot be labelled must not hide the others.
            if let Err(failure) = label(client, scope, &claim).await {
                warn!(claim = %claim.name_any(), namespace = claim.namespace(), "{failure}");
                has_failed = true;
            }
        } else if !claim::is_bound(&claim) {
            free.push(claim);
        }
    }
}

async fn label(client: &Client, scope: &Scope, claim: &PersistentVolumeClaim) -> Result<(), Failure> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
    let labels = json!({ "metadata": { "labels": { scope.place.key(): scope.place.value() } } });
    let patch = Patch::Merge(if_unchanged(claim, labels));
    let (name, parameters) = (claim.name_any(), PatchParams::default());
    match request("labelling a claim", claims.patch_metadata(&name, &parameters, &patch)).await {
        Ok(_) => Ok(()),
        // Whatever has changed it since has triggered the policy.
        Err(failure) if failure.is_conflict() || failure.is_not_found() => Ok(()),
        Err(failure) => Err(failure),
    }
}
