//! Whether the kubelet has registered the driver, according to its record in the API server. The kubelet itself
//! notifies only a frontend whose registration socket is new to it, and the helper keeps that socket while frontends
//! come and go.

use std::time::Duration;

use bulkhead_protocol::DriverName;
use k8s_openapi::api::storage::v1::CSINode;
use kube::{Api, Client};
use tokio::time::sleep;

use super::backoff::jitter;
use super::failure::Failure;
use super::request::request;
use crate::readiness::{Part, Readiness};

/// How often to look.
const PERIOD: Duration = Duration::from_secs(5);

/// Looks until `driver` is registered on `node`, whether the API server or the kubelet says so first.
pub async fn look(client: Client, driver: DriverName, node: String, readiness: Readiness) {
    while readiness.is_waiting(Part::Registration) {
        match is_registered(&client, &driver, &node).await {
            Ok(true) => readiness.ready(Part::Registration),
            Ok(false) => {}
            Err(failure) => readiness.not_ready(Part::Registration, failure),
        }
        sleep(PERIOD + jitter(PERIOD / 2)).await;
    }
}

async fn is_registered(client: &Client, driver: &DriverName, node: &str) -> Result<bool, Failure> {
    let nodes: Api<CSINode> = Api::all(client.clone());
    let found = request("reading the kubelet's record of drivers (CSINode)", nodes.get_opt(node)).await?;
    Ok(found.is_some_and(|found| found.spec.drivers.iter().any(|known| known.name == driver.as_str())))
}
