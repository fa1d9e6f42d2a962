//! Which node this is, as the API server sees it.

use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::{Api, Client};

use super::failure::{Failure, ask};
use crate::kubernetes::objects::names::{TOKEN_NODE_NAME, TOKEN_NODE_UID};

/// The node that the agent works for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Its name.
    pub name: String,
    /// Its uid, if the token tells.
    pub uid: Option<String>,
}

impl NodeIdentity {
    /// Asks the API server which node the token is bound to; it must be the one called `node`.
    ///
    /// # Errors
    /// `Refused` when it is another one.
    pub async fn review(client: &Client, node: &str) -> Result<Self, Failure> {
        let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
        let review =
            ask("a review of the own token", reviews.create(&PostParams::default(), &SelfSubjectReview::default()))
                .await?;
        let mut extra =
            review.status.and_then(|status| status.user_info).and_then(|user| user.extra).unwrap_or_default();
        let mut first = |key| extra.remove(key).and_then(|values| values.into_iter().next());
        let (name, uid) = (first(TOKEN_NODE_NAME), first(TOKEN_NODE_UID));
        match name {
            Some(name) if name == node => Ok(Self { name, uid }),
            Some(other) => Err(Failure::Refused(format!(
                "the token is bound to node {other:?}, and --node-id says {node:?}: give this node's agent a token of its own"
            ))),
            None => Ok(Self { name: node.to_owned(), uid: None }),
        }
    }
}
