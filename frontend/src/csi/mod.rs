//! The CSI services: translates protobuf to domain types and back, with one table of error codes.

mod call;
mod capability;
mod codes;
mod controller;
mod fields;
mod groups;
mod health;
mod identity;
mod metadata;
mod node;
mod offered;
mod placement;
mod snapshots;
mod validation;

use std::sync::Arc;

use bulkhead_model::volumes::Place;
use bulkhead_protocol::DriverName;
use tonic::service::Routes;

use crate::proto::csi::controller_server::ControllerServer;
use crate::proto::csi::group_controller_server::GroupControllerServer;
use crate::proto::csi::identity_server::IdentityServer;
use crate::proto::csi::node_server::NodeServer;
use crate::proto::csi::snapshot_metadata_server::SnapshotMetadataServer;
use crate::server::LONGEST_MESSAGE;
use crate::volumes::Volumes;

pub use codes::{Operation, code, code_name, status};
pub use fields::signed;

/// The maximum length of a node id (CSI, NodeGetInfo).
pub const LONGEST_NODE_ID: usize = 256;

/// The plugin: all five services over the volumes of one node.
#[derive(Clone)]
pub struct Plugin(Arc<Parts>);

struct Parts {
    driver: DriverName,
    node: String,
    place: Place,
    volumes: Volumes,
}

impl Plugin {
    /// The plugin `driver` on the node with this id. Neither changes while the plugin runs.
    pub fn new(driver: DriverName, node: String, volumes: Volumes) -> Self {
        let place = Place::new(&driver, &node);
        Self(Arc::new(Parts { driver, node, place, volumes }))
    }

    /// The services, for one socket.
    pub fn routes(&self) -> Routes {
        let longest = LONGEST_MESSAGE;
        Routes::new(IdentityServer::new(self.clone()).max_decoding_message_size(longest))
            .add_service(ControllerServer::new(self.clone()).max_decoding_message_size(longest))
            .add_service(NodeServer::new(self.clone()).max_decoding_message_size(longest))
            .add_service(GroupControllerServer::new(self.clone()).max_decoding_message_size(longest))
            .add_service(SnapshotMetadataServer::new(self.clone()).max_decoding_message_size(longest))
    }

    /// Waits until no operation on a volume is in progress.
    pub async fn idle(&self) {
        self.0.volumes.idle().await;
    }
}
