//! What the Controller service offers.

use crate::proto::csi::ControllerServiceCapability;
use crate::proto::csi::controller_service_capability::{Rpc, Type, rpc};

/// What every pool can do.
const ALWAYS: [rpc::Type; 9] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::ListVolumes,
    rpc::Type::GetCapacity,
    rpc::Type::ExpandVolume,
    rpc::Type::ModifyVolume,
    rpc::Type::GetVolume,
    rpc::Type::SingleNodeMultiWriter,
    rpc::Type::GetVolumeHealth,
    rpc::Type::ListVolumeHealth,
];

/// What takes a pool that can copy volumes.
const COPYING: [rpc::Type; 4] =
    [rpc::Type::CreateDeleteSnapshot, rpc::Type::ListSnapshots, rpc::Type::GetSnapshot, rpc::Type::CloneVolume];

/// The capabilities of the service, where some pool can copy volumes or none can.
pub(super) fn offered(can_copy: bool) -> Vec<ControllerServiceCapability> {
    let copying = if can_copy { COPYING.as_slice() } else { &[] };
    let capability =
        |rpc: &rpc::Type| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: (*rpc).into() })) };
    ALWAYS.iter().chain(copying).map(capability).collect()
}
