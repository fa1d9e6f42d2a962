//! Whether the kubelet has registered the driver, according to its record in the API server. The kubelet itself
//! notifies only a frontend whose registration socket is new to it, and the helper keeps that socket while frontends
//! come and go.

use std::future::pending;
use std::time::Duration;

use bulkhead_protocol::DriverName;
use k8s_openapi::api::storage::v1::CSINode;
use kube::{Api, Client};
use tokio::time::sleep;

use super::backoff::jitter;
use super::failure::Failure;
use super::request::request;
use crate::readiness::{Part, Readiness};

/// How often to look while the driver is not registered.
const SOON: Duration = Duration::from_secs(5);

/// Looks whether `driver` is registered on `node` for as long as it is polled, every `period` once it is, and tells
/// `readiness`, unless that is not needed. The kubelet may say so first; what it forgets it does not mention.
pub async fn look(client: &Client, driver: &DriverName, node: &str, period: Duration, readiness: &Readiness) {
    while let Some(state) = readiness.state(Part::Registration) {
        match (is_registered(client, driver, node).await, &state) {
            (Ok(true), _) => readiness.ready(Part::Registration),
            (Ok(false), Ok(())) => readiness.not_ready(
                Part::Registration,
                "the kubelet's record of drivers (CSINode) does not list this one any more: does the kubelet run, and does it see the registration socket? Restart it, or this program",
            ),
            (Err(failure), Err(_)) => readiness.not_ready(Part::Registration, failure),
            // It was not registered before, and it is unknown or the same now.
            _ => {}
        }
        let pause = if readiness.is_waiting(Part::Registration) { SOON } else { period };
        sleep(pause + jitter(pause / 2)).await;
    }
    pending::<()>().await;
}

async fn is_registered(client: &Client, driver: &DriverName, node: &str) -> Result<bool, Failure> {
    let nodes: Api<CSINode> = Api::all(client.clone());
    let found = request("reading the kubelet's record of drivers (CSINode)", nodes.get_opt(node)).await?;
    Ok(found.is_some_and(|found| found.spec.drivers.iter().any(|known| known.name == driver.as_str())))
}
