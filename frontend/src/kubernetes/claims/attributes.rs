//! The attributes that a claim's volume is to have, as its VolumeAttributesClass says. These are read one by one when a claim
//! names them and not watched: what they say never changes, and few claims name any.

use bulkhead_model::objects::{attributes_class, names};
use bulkhead_model::volumes::Attributes;
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::Api;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;
use crate::kubernetes::context::Context;

/// What the class called `name` says.
///
/// # Errors
/// `NotYet` when there is no such class.
pub async fn named(context: &Context, name: &str) -> Result<Attributes, Failure> {
    let classes: Api<VolumeAttributesClass> = Api::all(context.client.clone());
    let found = if names::is_object_name(name) {
        request("reading a VolumeAttributesClass", classes.get_opt(name)).await?
    } else {
        None
    };
    let missing = || {
        Failure::NotYet(format!(
            "volume attributes class {name} does not exist: create it, or have the claim name another one (Kubernetes has them from 1.34 on)"
        ))
    };
    Ok(attributes_class::attributes(&found.ok_or_else(missing)?, &context.driver)?)
}
