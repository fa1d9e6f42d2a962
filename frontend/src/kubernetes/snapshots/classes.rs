//! The class that an object was made with.

use bulkhead_model::objects::class::Class;
use bulkhead_model::objects::names::{is_object_name, shown};
use kube::Api;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;
use crate::kubernetes::context::Context;
use crate::kubernetes::known::Kept;

/// Checks that the class called `named` exists and asks for nothing that would have no effect.
///
/// # Errors
/// When it does not, or asks for something.
pub async fn check_class<C: Class + Kept>(context: &Context, named: Option<&str>) -> Result<(), Failure> {
    let Some(name) = named.filter(|name| is_object_name(name)) else {
        return Err(Failure::Refused(format!("the content names no {}", C::FIELD)));
    };
    let classes: Api<C> = Api::all(context.client.clone());
    let Some(class) = request("reading a class of snapshots", classes.get_opt(name)).await? else {
        return Err(Failure::NotYet(format!("snapshot class {name} does not exist")));
    };
    if class.driver() != context.agent.driver.as_str() {
        let other = shown(class.driver());
        return Err(Failure::Refused(format!("snapshot class {name} is of another driver, {other}")));
    }
    class.flaw().map_or(Ok(()), |flaw| Err(Failure::Refused(flaw)))
}
