//! Watching the claims that concern this node. Without the policy only the metadata of all claims is watched.

use std::future::ready;
use std::time::Duration;

use bulkhead_model::objects::names::CLAIM_POLICY;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::core::PartialObjectMeta;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};

use super::scope::filter;
use super::unlabelled;
use crate::kubernetes::api::backoff::Interruptions;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::pages::PAGE;
use crate::kubernetes::api::watch::config;
use crate::kubernetes::labels::scope::Scope;
use crate::kubernetes::labels::unlabelled::Found;
use crate::kubernetes::labels::watch::{Labelled, Watched};

/// Where claims arrive without contents, `spec` is `None`.
impl Labelled for PersistentVolumeClaim {
    const OBJECTS: &'static str = "claims";
    const EVERYTHING: &'static str = "the metadata of all claims";
    const POLICY: &'static str = CLAIM_POLICY;

    async fn is_known(_: &Client) -> Result<Result<(), Duration>, Failure> {
        Ok(Ok(()))
    }

    fn labelled(client: &Client, scope: &Scope) -> BoxStream<'static, Watched<Self>> {
        let claims: Api<Self> = Api::all(client.clone());
        // Those that any node may take have an empty value.
        let labels = format!("{} in (,{})", scope.place.key(), scope.place.value());
        watcher(claims, config().labels(&labels)).backoff(Interruptions::default()).boxed()
    }

    fn among_all(client: &Client, scope: &Scope) -> BoxStream<'static, Watched<Self>> {
        let partial: Api<PartialObjectMeta<Self>> = Api::all(client.clone());
        let scope = scope.clone();
        watcher(partial, config().page_size(PAGE))
            .backoff(Interruptions::default())
            .try_filter_map(move |event| ready(Ok(filter(&scope, event))))
            .boxed()
    }

    async fn find_unlabelled(client: &Client, scope: &Scope) -> Found<Self> {
        unlabelled::find(client, scope).await
    }
}
