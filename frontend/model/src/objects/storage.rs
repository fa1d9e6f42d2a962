//! Amounts of storage in API objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::{exact, parse};

/// The amount of storage among `resources`, in bytes; `None` if there is none or it is not a valid quantity.
pub fn bytes(resources: Option<&BTreeMap<String, Quantity>>) -> Option<u64> {
    parse(&resources?.get("storage")?.0)
}

/// `bytes` as the API server expects them.
pub fn quantity(bytes: u64) -> Quantity {
    Quantity(exact(bytes))
}
