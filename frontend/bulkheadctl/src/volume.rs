//! Commands on volumes.

use std::collections::BTreeMap;

use bulkhead_console::report::{Report, Table};
use bulkhead_frontend::proto::csi::volume_capability::access_mode::Mode;
use bulkhead_frontend::proto::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use bulkhead_frontend::proto::csi::volume_usage::Unit;
use bulkhead_frontend::proto::csi::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerModifyVolumeRequest, CreateVolumeRequest,
    NodeExpandVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest, Volume,
    VolumeCapability,
};
use bulkhead_frontend::proto::inspection::GetVolumeRequest;
use bulkhead_model::quantity::Quantity;
use serde_json::{Value, json};
use tonic::Code;

use crate::client::Client;
use crate::failure::Failure;
use crate::options::{Create, Publish, VolumeCommand};
use crate::{copy, delete, export, inspect};

/// Runs the command. What prints page by page leaves no report.
pub async fn run(client: Client, command: VolumeCommand) -> Result<Option<Report>, Failure> {
    let report = match command {
        VolumeCommand::Create(create) => self::create(client, create).await,
        VolumeCommand::Clone { id, copy } => copy::clone(client, id, copy).await,
        VolumeCommand::List => inspect::list(client).await,
        VolumeCommand::Show { id } => inspect::show(client, id).await,
        VolumeCommand::Orphans => inspect::orphans(client).await,
        VolumeCommand::Export { pool } => return export::run(client, pool.as_deref()).await.map(|()| None),
        VolumeCommand::Publish(publish) => self::publish(client, publish).await,
        VolumeCommand::Unpublish { id, target } => unpublish(client, id, target).await,
        VolumeCommand::Expand { id, size, path } => expand(client, id, size, path).await,
        VolumeCommand::Modify { id, inodes, thick } => modify(client, id, inodes, thick).await,
        VolumeCommand::Stats { id, path } => stats(client, id, path).await,
        VolumeCommand::Delete { id, yes, force } => delete::run(client, id, yes, force).await,
    };
    report.map(Some)
}

async fn create(mut client: Client, create: Create) -> Result<Report, Failure> {
    let sparse = create.sparse.then(|| "true".to_owned());
    let parameters = [
        ("pool", create.pool),
        ("backing", create.backing.map(|backing| backing.as_str().to_owned())),
        ("sparse", sparse),
        ("blockSize", create.block_size),
        ("dirMode", create.dir_mode),
        ("inodes", create.inodes),
    ];
    let request = CreateVolumeRequest {
        name: create.name,
        capacity_range: Some(CapacityRange { required_bytes: create.size.0, limit_bytes: 0 }),
        volume_capabilities: vec![capability(create.block, Mode::SingleNodeMultiWriter, Vec::new())],
        parameters: parameters.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect(),
        ..CreateVolumeRequest::default()
    };
    let volume = made(&mut client, request).await?;
    let text = format!("{} has {}", volume.volume_id, Quantity(volume.capacity_bytes));
    Ok(Report::new(described(&volume), Table::line(text)))
}

/// The volume that has been created, or found.
pub async fn made(client: &mut Client, request: CreateVolumeRequest) -> Result<Volume, Failure> {
    client.controller.create_volume(request).await?.into_inner().volume.ok_or(Failure::Incomplete("volume"))
}

async fn publish(mut client: Client, publish: Publish) -> Result<Report, Failure> {
    let mode = if publish.exclusive { Mode::SingleNodeSingleWriter } else { Mode::SingleNodeMultiWriter };
    let request = NodePublishVolumeRequest {
        volume_id: publish.id.clone(),
        target_path: publish.target.clone(),
        volume_capability: Some(capability(publish.block, mode, publish.mount_flag)),
        readonly: publish.read_only,
        ..NodePublishVolumeRequest::default()
    };
    client.node.node_publish_volume(request).await?;
    let text = format!("{} is published at {}", publish.id, publish.target);
    Ok(Report::new(json!({ "id": publish.id, "target": publish.target }), Table::line(text)))
}

async fn unpublish(mut client: Client, id: String, target: String) -> Result<Report, Failure> {
    let before = targets(&mut client, &id).await;
    let request = NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: target.clone() };
    client.node.node_unpublish_volume(request).await?;
    // To CSI, what is not published counts as unpublished; to a person, the id or the path may be a typo.
    let (was_published, text) = match before {
        Published::NoVolume => (false, format!("there is no volume {id}: nothing was published at {target}")),
        Published::At(number) if targets(&mut client, &id).await == Published::At(number) => {
            (false, format!("{id} was not published at {target}: see `bulkheadctl volume show {id}`"))
        }
        Published::At(_) | Published::Unknown => (true, format!("{id} is no longer published at {target}")),
    };
    Ok(Report::new(json!({ "id": id, "target": target, "wasPublished": was_published }), Table::line(text)))
}

/// At how many targets a volume is published.
#[derive(PartialEq, Eq)]
enum Published {
    NoVolume,
    At(u32),
    Unknown,
}

async fn targets(client: &mut Client, id: &str) -> Published {
    let request = GetVolumeRequest { id: id.to_owned(), without_owner: true, with_sharing: false };
    match client.inspection.get_volume(request).await {
        Ok(answer) => answer.into_inner().volume.map_or(Published::Unknown, |volume| Published::At(volume.targets)),
        Err(status) if status.code() == Code::NotFound => Published::NoVolume,
        Err(_) => Published::Unknown,
    }
}

async fn expand(mut client: Client, id: String, size: Quantity, path: Option<String>) -> Result<Report, Failure> {
    let capacity_range = Some(CapacityRange { required_bytes: size.0, limit_bytes: 0 });
    let volume_id = id.clone();
    let bytes = if let Some(volume_path) = path {
        let request =
            NodeExpandVolumeRequest { volume_id, volume_path, capacity_range, ..NodeExpandVolumeRequest::default() };
        client.node.node_expand_volume(request).await?.into_inner().capacity_bytes
    } else {
        let request =
            ControllerExpandVolumeRequest { volume_id, capacity_range, ..ControllerExpandVolumeRequest::default() };
        client.controller.controller_expand_volume(request).await?.into_inner().capacity_bytes
    };
    let text = format!("{id} has {}", Quantity(bytes));
    Ok(Report::new(json!({ "id": id, "bytes": bytes }), Table::line(text)))
}

async fn modify(mut client: Client, id: String, inodes: Option<String>, thick: bool) -> Result<Report, Failure> {
    let allocation = thick.then(|| "thick".to_owned());
    let attributes = [("inodes", inodes), ("allocation", allocation)];
    let mutable_parameters: BTreeMap<_, _> =
        attributes.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    let text = mutable_parameters.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ");
    let json = json!({ "id": id, "attributes": mutable_parameters });
    let volume_id = id.clone();
    let request =
        ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..ControllerModifyVolumeRequest::default() };
    client.controller.controller_modify_volume(request).await?;
    Ok(Report::new(json, Table::line(format!("{id} has {text}"))))
}

async fn stats(mut client: Client, id: String, path: String) -> Result<Report, Failure> {
    let request =
        NodeGetVolumeStatsRequest { volume_id: id.clone(), volume_path: path, ..NodeGetVolumeStatsRequest::default() };
    let stats = client.node.node_get_volume_stats(request).await?.into_inner();
    let mut facts = Vec::new();
    let mut json = serde_json::Map::new();
    json.insert("id".to_owned(), id.into());
    for usage in stats.usage {
        let (unit, shown): (_, fn(i64) -> String) = match usage.unit() {
            Unit::Bytes => ("bytes", |bytes| Quantity(bytes).to_string()),
            Unit::Inodes => ("inodes", |inodes| inodes.to_string()),
            Unit::Unknown => continue,
        };
        // What nothing counts is left out (CSI, VolumeUsage), which protobuf does not tell from zero.
        let counted = (usage.used != 0 || usage.available != 0).then_some((usage.used, usage.available));
        let text = match counted {
            None => format!("{} total", shown(usage.total)),
            Some((used, available)) => {
                format!("{} of {} used, {} available", shown(used), shown(usage.total), shown(available))
            }
        };
        facts.push((unit, text));
        let (used, available) = counted.unzip();
        json.insert(unit.to_owned(), json!({ "total": usage.total, "used": used, "available": available }));
    }
    if let Some(condition) = stats.volume_condition {
        json.insert("condition".to_owned(), json!({ "abnormal": condition.abnormal, "message": condition.message }));
        facts.push(("condition", condition.message));
    }
    Ok(Report::new(Value::Object(json), Table::facts(facts)))
}

/// The access that a command asks for.
pub fn capability(block: bool, mode: Mode, mount_flags: Vec<String>) -> VolumeCapability {
    let access_type = if block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume { mount_flags, ..MountVolume::default() })
    };
    VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
}

/// A volume for machines.
pub fn described(volume: &Volume) -> Value {
    json!({ "id": volume.volume_id, "bytes": volume.capacity_bytes })
}
