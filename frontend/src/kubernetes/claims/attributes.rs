//! The attributes that a claim's volume is to have, as its VolumeAttributesClass says. These are read one by one when a claim
//! names them and not watched: what they say never changes, and few claims name any.

use bulkhead_model::objects::{attributes_class, names};
use bulkhead_model::volumes::Attributes;
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::Api;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;
use crate::kubernetes::context::Context;

/// Returns what the class called `name` says.
///
/// # Errors
/// `NotYet` when there is no such class.
pub async fn named(context: &Context, name: &str) -> Result<Attributes, Failure> {
    let classes: Api<VolumeAttributesClass> = Api::all(context.client.clone());
    let missing = || {
        Failure::NotYet(format!(
            "volume attributes class {} does not exist: create it, or have the claim name another one (Kubernetes has them from 1.34 on)",
            names::shown(name)
        ))
    };
    if !names::is_object_name(name) {
        return Err(missing());
    }
    match request("reading a VolumeAttributesClass", classes.get(name)).await {
        Ok(class) => Ok(attributes_class::attributes(&class, &context.agent.driver)?),
        // An older server knows no such kind.
        Err(failure) if failure.is_not_found() || failure.is_unknown_kind() => Err(missing()),
        Err(failure) => Err(failure),
    }
}
