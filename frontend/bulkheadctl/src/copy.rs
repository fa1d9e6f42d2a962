//! Volumes that begin as copies: `volume clone` and `snapshot restore`.

use bulkhead_console::report::{Report, Table};
use bulkhead_frontend::proto::csi::volume_capability::access_mode::Mode;
use bulkhead_frontend::proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use bulkhead_frontend::proto::csi::{CapacityRange, CreateVolumeRequest, VolumeContentSource};
use bulkhead_frontend::proto::inspection::{GetSnapshotRequest, GetVolumeRequest};
use bulkhead_model::quantity::Quantity;

use crate::client::Client;
use crate::failure::Failure;
use crate::options::{Backing, Copy};
use crate::volume::{capability, described, made};

/// Makes a volume from the volume `id`.
pub async fn clone(mut client: Client, id: String, copy: Copy) -> Result<Report, Failure> {
    let request = GetVolumeRequest { id: id.clone(), without_owner: true, with_sharing: false };
    let found = client.inspection.get_volume(request).await?.into_inner().volume;
    let kind = found.ok_or(Failure::Incomplete("volume"))?.kind;
    let source = Type::Volume(VolumeSource { volume_id: id.clone() });
    create(client, copy, &id, &kind, source).await
}

/// Makes a volume from the snapshot `id`.
pub async fn restore(mut client: Client, id: String, copy: Copy) -> Result<Report, Failure> {
    let found = client.inspection.get_snapshot(GetSnapshotRequest { id: id.clone() }).await?.into_inner().snapshot;
    let kind = found.ok_or(Failure::Incomplete("snapshot"))?.kind;
    let source = Type::Snapshot(SnapshotSource { snapshot_id: id.clone() });
    create(client, copy, &id, &kind, source).await
}

/// Asks for what a copy of something of this kind must be.
async fn create(mut client: Client, copy: Copy, id: &str, kind: &str, source: Type) -> Result<Report, Failure> {
    let parameters = [
        ("backing", (kind == "filesystem").then(|| Backing::Image.as_str().to_owned())),
        ("sparse", copy.sparse.then(|| "true".to_owned())),
        ("dirMode", copy.dir_mode),
    ];
    let request = CreateVolumeRequest {
        name: copy.name,
        capacity_range: copy.size.map(|size| CapacityRange { required_bytes: size.0, limit_bytes: 0 }),
        volume_capabilities: vec![capability(kind == "block", Mode::SingleNodeMultiWriter, Vec::new())],
        parameters: parameters.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect(),
        volume_content_source: Some(VolumeContentSource { r#type: Some(source) }),
        ..CreateVolumeRequest::default()
    };
    let volume = made(&mut client, request).await?;
    let text = format!("{} has {}, and the content of {id}", volume.volume_id, Quantity(volume.capacity_bytes));
    let mut json = described(&volume);
    json["source"] = id.into();
    Ok(Report::new(json, Table::line(text)))
}
