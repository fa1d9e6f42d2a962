//! What the two kinds of objects differ in.

use std::future::Future;

use bulkhead_model::objects::content::Content;
use bulkhead_model::objects::persistent_volume;
use bulkhead_model::volumes::Fault;
use bulkhead_protocol::ErrorKind;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::Value;

use crate::kubernetes::api::events::Reason;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::{AgentIdentity, Context};
use crate::kubernetes::known::Kept;

/// A kind of objects that stand for what is taken of volumes.
pub trait Kind: Content + Kept {
    /// What it stands for, as it is called in logs.
    const CALLED: &'static str;

    /// What they stand for.
    const MANY: &'static str;

    /// What is watched without the policy, as it is called in logs.
    const EVERYTHING: &'static str;

    /// The admission policy, and its binding, that gives such an object the label by which agents watch.
    const POLICY: &'static str;

    /// The reasons of events.
    const REASONS: Reasons;

    /// What a node has to have for it, in words for its owner: a volume, or what somebody has named.
    fn wanted(&self) -> String;

    /// Returns whether this node is to handle it. Only one node finds that it is.
    fn is_here(&self, context: &Context) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Checks that it can be asked for, before anything begins.
    ///
    /// # Errors
    /// When it cannot, or not yet; the message is for its owner.
    fn check(&self, context: &Context) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Takes what is to be called `name`, or finds it, and returns what its status is then.
    ///
    /// # Errors
    /// When it cannot be done now; the message is for its owner.
    fn take(&self, context: &Context, name: &str) -> impl Future<Output = Result<Value, Failure>> + Send;

    /// Finds what is called `handle`, and returns what its status is then.
    ///
    /// # Errors
    /// When there is none on this node.
    fn find(&self, context: &Context, handle: &str) -> impl Future<Output = Result<Value, Failure>> + Send;

    /// Deletes what is called `handle`, unless other objects need it.
    ///
    /// # Errors
    /// When it cannot be done now; the message is for its owner.
    fn delete(&self, context: &Context, handle: &str) -> impl Future<Output = Result<(), Failure>> + Send;

    /// What its status is once nothing of it exists any more.
    fn status_when_deleted() -> Value;
}

/// The reasons of events about a kind, which are those that other drivers' snapshotters use.
#[derive(Clone, Copy, Debug)]
pub struct Reasons {
    /// It could not be taken.
    pub creation_failed: Reason,
    /// One that somebody has named could not be found.
    pub check_failed: Reason,
    /// It could not be deleted.
    pub delete_failed: Reason,
}

/// Returns whether `volume` is one of this node. A volume is where its PersistentVolume is: one that was left behind on another
/// node may have the same id.
pub fn is_volume_of_node(context: &Context, volume: &str) -> bool {
    let Context { agent: AgentIdentity { driver, place, .. }, stores, .. } = context;
    let own = |object: &PersistentVolume| persistent_volume::own_volume(object, driver, place);
    stores.persistent_volumes.mentioning(volume).any(|object| own(&object).is_some_and(|own| own.as_str() == volume))
}

/// Returns whether something that somebody has named was found here. It may have no other object. A helper of an earlier
/// release knows of none.
///
/// # Errors
/// When it is not known.
pub fn is_found<T>(found: Result<T, Fault>) -> Result<bool, Failure> {
    match found {
        Ok(_) => Ok(true),
        Err(fault) if fault.is(ErrorKind::NotFound) || fault.is(ErrorKind::Unsupported) => Ok(false),
        Err(fault) => Err(fault.into()),
    }
}
