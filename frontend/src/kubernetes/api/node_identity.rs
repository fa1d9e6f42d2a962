//! Which node the agent works for, as the API server sees it.

use std::time::Duration;

use bulkhead_model::printable::printable;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::sleep;
use tracing::debug;

use super::credential::{Credential, Used};
use super::failure::Failure;
use super::request::request;

/// How often it is looked whether the token is another one.
const LOOK: Duration = Duration::from_secs(10);

/// How much of the name of an account is shown, in bytes.
const LONGEST_ACCOUNT: usize = 253;

/// In a token's extra fields: the node it is bound to, directly or through its pod (Kubernetes 1.32).
const TOKEN_NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// The uid of that node.
const TOKEN_NODE_UID: &str = "authentication.kubernetes.io/node-uid";

/// The node that the agent works for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeIdentity {
    /// Its name.
    pub name: String,
    /// The user that the API server knows the agent as.
    pub account: String,
    /// Its uid, if the token states it.
    pub uid: Option<String>,
}

/// The reference by which an object is deleted along with the node of that name and uid.
pub fn owner(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}

impl NodeIdentity {
    /// The Node object, for events about it.
    pub fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(self.name.clone()),
            // Kubelets write it this way when the uid is unknown.
            uid: Some(self.uid.clone().unwrap_or_else(|| self.name.clone())),
            ..ObjectReference::default()
        }
    }

    /// Waits until the agent has a token that is not for this node or this account any more, and returns why: all that it
    /// sends would be refused. Only a token from a file can be exchanged; the server is asked about each one once, after that
    /// which it has looked at already.
    pub async fn lost(&self, client: &Client, credential: Option<(&Credential, Used)>) -> Failure {
        let Some((credential, mut known)) = credential else { return std::future::pending().await };
        loop {
            sleep(LOOK).await;
            let used = credential.used();
            if used == known {
                continue;
            }
            match Self::review(client, &self.name).await {
                Ok(now) if now.account == self.account => known = used,
                Ok(now) => {
                    let account = printable(&now.account, LONGEST_ACCOUNT);
                    return Failure::Refused(format!("the token was exchanged for one of another account, {account}"));
                }
                Err(refusal @ Failure::Refused(_)) => return refusal,
                // A server that does not answer is asked again.
                Err(failure) => debug!("{failure}"),
            }
        }
    }

    /// Asks the API server which node the token is bound to; it must be the one called `node`.
    ///
    /// # Errors
    /// `Refused` when it is another one, or none.
    pub async fn review(client: &Client, node: &str) -> Result<Self, Failure> {
        let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
        let (parameters, review) = (PostParams::default(), SelfSubjectReview::default());
        let review = request("reviewing the agent's own token", reviews.create(&parameters, &review)).await?;
        let user = review.status.and_then(|status| status.user_info);
        let (account, extra) = user.map(|user| (user.username, user.extra)).unwrap_or_default();
        let (account, mut extra) = (account.unwrap_or_default(), extra.unwrap_or_default());
        let mut first = |key| extra.remove(key).and_then(|values| values.into_iter().next());
        let (name, uid) = (first(TOKEN_NODE_NAME), first(TOKEN_NODE_UID));
        match name {
            Some(name) if name == node => Ok(Self { name, account, uid }),
            Some(other) => Err(Failure::Refused(format!(
                "the token is bound to node {other:?}, but --node-id is {node:?}: give this node's agent a token of its own"
            ))),
            None => Err(Failure::Refused(
                "the token is bound to no node, so the cluster's policies refuse all that it writes: give the agent one that is bound to its pod or to its Node"
                    .to_owned(),
            )),
        }
    }
}
