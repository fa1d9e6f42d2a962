//! The admission policies that confine the agent to its own node's objects. Without them its token could do the same to
//! every node's, so an agent works only while it finds them in force for its own account.

mod watch;

use bulkhead_model::objects::names;
use bulkhead_model::policies::{by_name, judge};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::ListParams;
use kube::{Api, Client};

use super::api::failure::Failure;
use super::api::request::request;

pub use watch::lost;

const LOOKING: &str = "looking for the agents' admission policies";

/// Checks that all policies are in force for the user called `account`, an agent of `driver`.
///
/// # Errors
/// `Refused` when one is not.
pub async fn check(client: &Client, account: &str, driver: &str) -> Result<(), Failure> {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client.clone());
    // From the API server's cache: a thousand agents may start at a time.
    let parameters = ListParams::default().match_any().labels(&names::confines_agents(&driver));
    let policies = request(LOOKING, policies.list(&parameters)).await?;
    let bindings = request(LOOKING, bindings.list(&parameters)).await?;
    judge(account, driver, &by_name(policies.items), &by_name(bindings.items)).map_err(Failure::Refused)
}
