//! Who asks, and for the snapshots of which namespaces.

use bulkhead_model::printable::printable;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::Api;
use kube::api::PostParams;

use super::{Callers, Refusal, unasked};
use crate::kubernetes::api::request::request;

/// How much of the name of an account is shown, in bytes.
const LONGEST_ACCOUNT: usize = 253;

impl Callers {
    /// Returns the account that `token`, made for `audience`, is of, if it may know of the snapshots of `namespace`.
    ///
    /// # Errors
    /// When it may not, or the API server does not answer.
    pub async fn admit(&self, token: String, audience: &str, namespace: &str) -> Result<String, Refusal> {
        let user = self.review(token, audience).await?;
        let account = printable(user.username.as_deref().unwrap_or_default(), LONGEST_ACCOUNT).into_owned();
        let resource = ResourceAttributes {
            group: Some("snapshot.storage.k8s.io".to_owned()),
            version: Some("v1".to_owned()),
            resource: Some("volumesnapshots".to_owned()),
            verb: Some("get".to_owned()),
            namespace: Some(namespace.to_owned()),
            ..ResourceAttributes::default()
        };
        let UserInfo { extra, groups, uid, username: user } = user;
        let resource_attributes = Some(resource);
        let spec =
            SubjectAccessReviewSpec { extra, groups, uid, user, resource_attributes, non_resource_attributes: None };
        let (reviews, review) = (Api::all(self.0.client.clone()), SubjectAccessReview { spec, ..Default::default() });
        let parameters = PostParams::default();
        let reviewed = request("reviewing a caller's access", reviews.create(&parameters, &review)).await;
        match reviewed.map_err(unasked)?.status {
            Some(status) if status.allowed && status.denied != Some(true) => Ok(account),
            _ => Err(Refusal::Forbidden { account, namespace: namespace.to_owned() }),
        }
    }

    async fn review(&self, token: String, audience: &str) -> Result<UserInfo, Refusal> {
        let spec = TokenReviewSpec { audiences: Some(vec![audience.to_owned()]), token: Some(token) };
        let (reviews, review) = (Api::all(self.0.client.clone()), TokenReview { spec, ..Default::default() });
        let parameters = PostParams::default();
        let reviewed = request("reviewing a caller's token", reviews.create(&parameters, &review)).await;
        let status = reviewed.map_err(unasked)?.status.unwrap_or_default();
        // A server that does not know audiences names none, and has not looked at them.
        let is_for_us = status.audiences.iter().flatten().any(|known| known == audience);
        match status.user.filter(|_| is_for_us && status.authenticated == Some(true)) {
            Some(user) if user.username.as_ref().is_some_and(|name| !name.is_empty()) => Ok(user),
            _ => Err(Refusal::Unknown),
        }
    }
}
