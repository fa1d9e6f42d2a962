//! The agents of other nodes, by the Service in front of them.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;

use bulkhead_model::volumes::Place;
use bulkhead_protocol::DriverName;
use futures::TryStreamExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;

use super::{Callers, Refusal, unasked};
use crate::kubernetes::api::pages::list;
use crate::kubernetes::context::Context;

/// The Service that leads to the agents, and the label by which its slices are found.
const SERVICE: &str = "kubernetes.io/service-name=bulkhead-snapshot-metadata";

/// The agent of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The node's label.
    pub node: String,
    /// Where the agent serves.
    pub address: SocketAddr,
}

impl Callers {
    /// The agents that serve, as the slices of the Service say.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn peers(&self) -> Result<Vec<Peer>, Refusal> {
        let Context { client, agent, .. } = &*self.0;
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), &agent.namespace);
        let mut listed = pin!(list("listing the EndpointSlices of the agents", slices, Some(SERVICE)));
        let mut peers = Vec::new();
        while let Some(slice) = listed.try_next().await.map_err(unasked)? {
            peers.extend(peers_in(&slice, &agent.driver));
        }
        Ok(peers)
    }
}

/// The agents of a slice. One that is not ready serves as well as it can.
fn peers_in(slice: &EndpointSlice, driver: &DriverName) -> Vec<Peer> {
    let port = slice.ports.iter().flatten().find_map(|port| u16::try_from(port.port?).ok());
    let peers = slice.endpoints.iter().filter_map(|endpoint| {
        let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
        let node = Place::new(driver, endpoint.node_name.as_deref()?).value().to_owned();
        Some(Peer { node, address: SocketAddr::new(address, port?) })
    });
    peers.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn the_agents_of_a_slice() {
        let slice = from_value(json!({
            "addressType": "IPv4",
            "ports": [{ "name": "changed-blocks", "port": 9809 }],
            "endpoints": [
                { "addresses": ["192.0.2.1", "192.0.2.9"], "nodeName": "here", "conditions": { "ready": false } },
                { "addresses": ["192.0.2.2"], "nodeName": "Node/With A Strange Name" },
                { "addresses": ["192.0.2.3"] },
                { "addresses": ["example.org"], "nodeName": "there" },
            ],
        }));
        let driver: DriverName = "bulkhead.csi.local".parse().unwrap();
        let found = peers_in(&slice.unwrap(), &driver);
        let strange = Place::new(&driver, "Node/With A Strange Name").value().to_owned();
        let peer = |node: &str, address: &str| Peer { node: node.to_owned(), address: address.parse().unwrap() };
        assert_eq!(found, [peer("here", "192.0.2.1:9809"), peer(&strange, "192.0.2.2:9809")]);
        let without_port =
            json!({ "addressType": "IPv4", "endpoints": [{ "addresses": ["192.0.2.1"], "nodeName": "here" }] });
        assert!(peers_in(&from_value(without_port).unwrap(), &driver).is_empty());
    }
}
