//! Requests as an ordinary client would make them; a test changes the one field it is about.

use std::path::Path;

use super::v1::volume_capability::access_mode::Mode;
use super::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use super::v1::*;

/// One mebibyte.
pub const MIB: i64 = 1 << 20;

/// Use as a directory in this mode.
pub fn mount_in(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

/// Use as a device in this mode.
pub fn block_in(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(AccessType::Block(BlockVolume {})),
        access_mode: Some(AccessMode { mode: mode.into() }),
    }
}

/// Use as a directory by any number of pods on one node.
pub fn mount() -> VolumeCapability {
    mount_in(Mode::SingleNodeMultiWriter)
}

/// Use as a device by any number of pods on one node.
pub fn block() -> VolumeCapability {
    block_in(Mode::SingleNodeMultiWriter)
}

/// Use as a directory with these mount flags.
pub fn mount_with_flags(flags: &[&str]) -> VolumeCapability {
    let volume =
        MountVolume { mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(), ..MountVolume::default() };
    VolumeCapability { access_type: Some(AccessType::Mount(volume)), ..mount() }
}

/// Use as a directory with this filesystem.
pub fn mount_with_filesystem(fs_type: &str) -> VolumeCapability {
    let volume = MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() };
    VolumeCapability { access_type: Some(AccessType::Mount(volume)), ..mount() }
}

/// At least this many bytes.
pub fn at_least(required_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes: 0 })
}

/// Between this many and that many bytes.
pub fn between(required_bytes: i64, limit_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes })
}

/// Parameters of a storage class.
pub fn parameters(pairs: &[(&str, &str)]) -> std::collections::BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Create a volume.
pub fn create(name: &str, bytes: i64, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: at_least(bytes),
        volume_capabilities: vec![capability],
        ..CreateVolumeRequest::default()
    }
}

/// Create a volume that begins as a copy of a snapshot, in its size.
pub fn restore(name: &str, snapshot: &str, capability: VolumeCapability) -> CreateVolumeRequest {
    let source = volume_content_source::SnapshotSource { snapshot_id: snapshot.to_owned() };
    copy(name, volume_content_source::Type::Snapshot(source), capability)
}

/// Create a volume that begins as a copy of another volume, in its size.
pub fn clone(name: &str, volume: &str, capability: VolumeCapability) -> CreateVolumeRequest {
    let source = volume_content_source::VolumeSource { volume_id: volume.to_owned() };
    copy(name, volume_content_source::Type::Volume(source), capability)
}

fn copy(name: &str, source: volume_content_source::Type, capability: VolumeCapability) -> CreateVolumeRequest {
    let volume_content_source = Some(VolumeContentSource { r#type: Some(source) });
    CreateVolumeRequest { volume_content_source, capacity_range: None, ..create(name, 0, capability) }
}

/// Take a snapshot.
pub fn take(name: &str, volume: &str) -> CreateSnapshotRequest {
    let (name, source_volume_id) = (name.to_owned(), volume.to_owned());
    CreateSnapshotRequest { name, source_volume_id, ..CreateSnapshotRequest::default() }
}

/// Delete a snapshot.
pub fn drop_snapshot(id: &str) -> DeleteSnapshotRequest {
    DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..DeleteSnapshotRequest::default() }
}

/// Delete a volume.
pub fn delete(id: &str) -> DeleteVolumeRequest {
    DeleteVolumeRequest { volume_id: id.to_owned(), ..DeleteVolumeRequest::default() }
}

/// Publish a volume read-write.
pub fn publish(id: &str, target: &Path, capability: VolumeCapability) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: text(target),
        volume_capability: Some(capability),
        ..NodePublishVolumeRequest::default()
    }
}

/// Publish a volume read-only.
pub fn publish_read_only(id: &str, target: &Path, capability: VolumeCapability) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest { readonly: true, ..publish(id, target, capability) }
}

/// Undo a publish.
pub fn unpublish(id: &str, target: &Path) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: text(target) }
}

/// Statistics of a volume published at `path`.
pub fn stats(id: &str, path: &Path) -> NodeGetVolumeStatsRequest {
    NodeGetVolumeStatsRequest {
        volume_id: id.to_owned(),
        volume_path: text(path),
        ..NodeGetVolumeStatsRequest::default()
    }
}

/// Grow a volume published at `path`.
pub fn node_expand(id: &str, path: &Path, bytes: i64) -> NodeExpandVolumeRequest {
    NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: text(path),
        capacity_range: at_least(bytes),
        ..NodeExpandVolumeRequest::default()
    }
}

/// Grow a volume.
pub fn controller_expand(id: &str, bytes: i64) -> ControllerExpandVolumeRequest {
    ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: at_least(bytes),
        ..ControllerExpandVolumeRequest::default()
    }
}

/// Check what a volume can do.
pub fn validate(id: &str, capabilities: Vec<VolumeCapability>) -> ValidateVolumeCapabilitiesRequest {
    ValidateVolumeCapabilitiesRequest {
        volume_id: id.to_owned(),
        volume_capabilities: capabilities,
        ..ValidateVolumeCapabilitiesRequest::default()
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
