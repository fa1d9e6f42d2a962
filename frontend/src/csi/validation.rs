//! `ValidateVolumeCapabilities`: checks whether a volume has the stated properties.

use bulkhead_model::volumes::{Access, Backing, Fault};
use bulkhead_protocol::VolumeKind;

use super::capability::{access, complete, with_filesystem};
use super::fields::{attributes, parameters};
use crate::proto::csi::validate_volume_capabilities_response::Confirmed;
use crate::proto::csi::{ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse};
use crate::volumes::Measured;

/// Checks that the request is complete.
///
/// # Errors
/// When something is missing.
pub(super) fn check_complete(request: &ValidateVolumeCapabilitiesRequest) -> Result<(), Fault> {
    if request.volume_capabilities.is_empty() {
        return Err(Fault::invalid("volume_capabilities is missing"));
    }
    request.volume_capabilities.iter().try_for_each(|capability| complete(Some(capability)).map(drop))
}

/// Confirms all stated properties, or says why one does not hold.
pub(super) fn answer(
    request: ValidateVolumeCapabilitiesRequest,
    volume: &Measured,
) -> ValidateVolumeCapabilitiesResponse {
    match confirm(&request, volume) {
        Ok(()) => ValidateVolumeCapabilitiesResponse {
            confirmed: Some(Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            }),
            message: String::new(),
        },
        Err(fault) => ValidateVolumeCapabilitiesResponse { confirmed: None, message: fault.to_string() },
    }
}

fn confirm(request: &ValidateVolumeCapabilitiesRequest, volume: &Measured) -> Result<(), Fault> {
    let (is, spec) = (volume.mode(), &volume.usage.spec);
    for capability in &request.volume_capabilities {
        let access = access(Some(capability))?;
        if access.mode() != is {
            return Err(Fault::unsupported(format!("the volume is a {} volume", is.as_str())));
        }
        if let Access::Directory { options, .. } = access {
            let is_image = matches!(spec.kind, VolumeKind::Filesystem { .. });
            options.check(if is_image { Backing::Image } else { Backing::Directory })?;
        }
    }
    let wanted = attributes(&request.mutable_parameters)?;
    if !wanted.are_those_of(&spec.kind) {
        return Err(Fault::unsupported("the volume has other attributes (mutable_parameters)"));
    }
    let asked = with_filesystem(parameters(&request.parameters)?, &request.volume_capabilities)?;
    if !asked.allows_filesystem(&volume.filesystem) {
        return Err(Fault::unsupported(format!("the volume's filesystem is {}", volume.filesystem)));
    }
    if request.parameters.is_empty() {
        return Ok(());
    }
    let asked = asked.with_attributes(&wanted, is)?;
    if asked.allows_pool(&volume.usage.pool) && asked.kind(is, spec.size) == spec.kind {
        Ok(())
    } else {
        Err(Fault::unsupported("the volume was created with other parameters"))
    }
}
