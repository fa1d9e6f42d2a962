//! The policies that set labels. Each is two objects of one name: the policy, and the binding that puts it in force.

use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::api::{ApiResource, DynamicObject, ObjectMeta};
use kube::core::PartialObjectMeta;
use kube::{Api, Client};

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::api::request::request;

/// One of the two objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What is done to objects.
    Policy,
    /// That it is done.
    Binding,
}

impl Part {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Policy, Self::Binding];

    /// The metadata of all objects of this kind.
    pub fn api(self, client: &Client) -> Api<PartialObjectMeta<DynamicObject>> {
        // The kinds are newer than the oldest supported version of the API, so the client has no types for them.
        let (like, kind, plural) = match self {
            Self::Policy => (
                ApiResource::erase::<ValidatingAdmissionPolicy>(&()),
                "MutatingAdmissionPolicy",
                "mutatingadmissionpolicies",
            ),
            Self::Binding => (
                ApiResource::erase::<ValidatingAdmissionPolicyBinding>(&()),
                "MutatingAdmissionPolicyBinding",
                "mutatingadmissionpolicybindings",
            ),
        };
        Api::all_with(client.clone(), &ApiResource { kind: kind.to_owned(), plural: plural.to_owned(), ..like })
    }
}

/// The metadata of the policy called `name` and of its binding, if both are there. That of the policy is empty where it may
/// not be read.
///
/// # Errors
/// When the API server does not answer.
pub async fn find(client: &Client, name: &str) -> Result<Option<[ObjectMeta; 2]>, Failure> {
    let Some(binding) = metadata(client, Part::Binding, name).await? else { return Ok(None) };
    let policy = match metadata(client, Part::Policy, name).await {
        // The rules of an earlier release do not grant it.
        Err(failure) if failure.is_forbidden() => Some(ObjectMeta::default()),
        policy => policy?,
    };
    Ok(policy.map(|policy| [policy, binding]))
}

async fn metadata(client: &Client, part: Part, name: &str) -> Result<Option<ObjectMeta>, Failure> {
    let found = part.api(client);
    let found = request("looking for an admission policy that sets labels", found.get_opt(name)).await?;
    Ok(found.map(|found| found.metadata))
}
