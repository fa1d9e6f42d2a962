//! Commands on snapshots.

use bulkhead_console::prompt::confirm;
use bulkhead_console::report::{Report, Table};
use bulkhead_frontend::proto::csi::{
    BlockMetadata, CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, DeleteSnapshotRequest,
    DeleteVolumeGroupSnapshotRequest, GetMetadataAllocatedRequest, GetMetadataDeltaRequest,
    GetVolumeGroupSnapshotRequest, Snapshot as Member, VolumeGroupSnapshot,
};
use bulkhead_frontend::proto::inspection::{GetSnapshotRequest, ListSnapshotsRequest, ListSnapshotsResponse, Snapshot};
use bulkhead_model::quantity::Quantity;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tonic::Code;

use crate::client::Client;
use crate::failure::Failure;
use crate::options::SnapshotCommand;
use crate::{copy, pages};

/// Runs the command.
pub async fn run(client: Client, command: SnapshotCommand) -> Result<Report, Failure> {
    match command {
        SnapshotCommand::Create { volume, name } => create(client, volume, name).await,
        SnapshotCommand::Together { name, volumes } => together(client, name, volumes).await,
        SnapshotCommand::List { of } => list(client, of).await,
        SnapshotCommand::Show { id } => show(client, id).await,
        SnapshotCommand::Delta { id, later: None } => allocated(client, id).await,
        SnapshotCommand::Delta { id, later: Some(later) } => delta(client, id, later).await,
        SnapshotCommand::Restore { id, copy } => copy::restore(client, id, copy).await,
        SnapshotCommand::Delete { id, yes } => delete(client, id, yes).await,
    }
}

async fn create(mut client: Client, source_volume_id: String, name: String) -> Result<Report, Failure> {
    let request = CreateSnapshotRequest { source_volume_id, name, ..CreateSnapshotRequest::default() };
    let taken = client.controller.create_snapshot(request).await?.into_inner().snapshot;
    let taken = taken.ok_or(Failure::Incomplete("snapshot"))?;
    let (id, source) = (taken.snapshot_id, taken.source_volume_id);
    let text = format!("{id} is a snapshot of {source}, and has {}", Quantity(taken.size_bytes));
    Ok(Report::new(json!({ "id": id, "source": source, "bytes": taken.size_bytes }), Table::line(text)))
}

async fn together(mut client: Client, name: String, source_volume_ids: Vec<String>) -> Result<Report, Failure> {
    let request = CreateVolumeGroupSnapshotRequest { name, source_volume_ids, ..Default::default() };
    let group = client.groups.create_volume_group_snapshot(request).await?.into_inner().group_snapshot;
    let VolumeGroupSnapshot { group_snapshot_id, snapshots, .. } = group.ok_or(Failure::Incomplete("group"))?;
    let rows = snapshots.iter().map(|one| [one.snapshot_id.clone(), one.source_volume_id.clone()]);
    let described = |one: &Member| json!({ "id": one.snapshot_id, "source": one.source_volume_id });
    let json = json!({ "id": group_snapshot_id, "snapshots": snapshots.iter().map(described).collect::<Vec<_>>() });
    Ok(Report::new(json, Table::headed(["id", "source"], rows)))
}

async fn list(mut client: Client, of: Option<String>) -> Result<Report, Failure> {
    let snapshots = all(&mut client, of.as_deref().unwrap_or_default()).await?;
    let headings = ["id", "pool", "kind", "size", "allocated", "source", "taken"];
    let table = Table::headed(headings, snapshots.iter().map(row));
    Ok(Report::new(snapshots.iter().map(described).collect(), table))
}

/// All snapshots of `source`, or simply all if it is empty.
pub async fn all(client: &mut Client, source: &str) -> Result<Vec<Snapshot>, Failure> {
    let mut snapshots = Vec::new();
    let ask = async |starting_token| {
        let request = ListSnapshotsRequest { starting_token, source: source.to_owned() };
        client.inspection.list_snapshots(request).await
    };
    let take = |page: ListSnapshotsResponse| {
        snapshots.extend(page.snapshots);
        Ok(page.next_token)
    };
    pages::each(ask, take).await?;
    Ok(snapshots)
}

async fn found(client: &mut Client, id: &str) -> Result<Snapshot, Failure> {
    let answer = client.inspection.get_snapshot(GetSnapshotRequest { id: id.to_owned() }).await?.into_inner();
    answer.snapshot.ok_or(Failure::Incomplete("snapshot"))
}

async fn show(mut client: Client, id: String) -> Result<Report, Failure> {
    let snapshot = found(&mut client, &id).await?;
    let facts = Table::facts([
        ("id", snapshot.id.clone()),
        ("pool", snapshot.pool.clone()),
        ("kind", snapshot.kind.clone()),
        ("size", Quantity::from(snapshot.size_bytes).to_string()),
        ("allocated", Quantity::from(snapshot.allocated_bytes).to_string()),
        ("source", snapshot.source.clone()),
        ("family", snapshot.family.clone()),
        ("taken", taken(&snapshot)),
    ]);
    Ok(Report::new(described(&snapshot), facts))
}

async fn allocated(mut client: Client, snapshot_id: String) -> Result<Report, Failure> {
    let request = GetMetadataAllocatedRequest { snapshot_id: snapshot_id.clone(), ..Default::default() };
    let stream = client.metadata.get_metadata_allocated(request).await?.into_inner();
    let mut ranges = Ranges::default();
    pages::ranges(stream, |message| ranges.add(message.volume_capacity_bytes, message.block_metadata)).await?;
    Ok(ranges.report(&snapshot_id, None))
}

async fn delta(mut client: Client, base_snapshot_id: String, target_snapshot_id: String) -> Result<Report, Failure> {
    let (base, target) = (base_snapshot_id.clone(), target_snapshot_id.clone());
    let request = GetMetadataDeltaRequest { base_snapshot_id, target_snapshot_id, ..Default::default() };
    let stream = client.metadata.get_metadata_delta(request).await?.into_inner();
    let mut ranges = Ranges::default();
    pages::ranges(stream, |message| ranges.add(message.volume_capacity_bytes, message.block_metadata)).await?;
    Ok(ranges.report(&target, Some(&base)))
}

/// Ranges of a snapshot, as far as they have come.
#[derive(Default)]
struct Ranges {
    bytes: i64,
    ranges: Vec<BlockMetadata>,
}

impl Ranges {
    fn add(&mut self, bytes: i64, more: Vec<BlockMetadata>) {
        self.bytes = bytes;
        self.ranges.extend(more);
    }

    fn report(&self, id: &str, base: Option<&str>) -> Report {
        let rows = self.ranges.iter().map(|range| [range.byte_offset.to_string(), range.size_bytes.to_string()]);
        let ranges: Vec<_> = self
            .ranges
            .iter()
            .map(|range| json!({ "offset": range.byte_offset, "length": range.size_bytes }))
            .collect();
        let json = json!({ "id": id, "base": base, "bytes": self.bytes, "ranges": ranges });
        Report::new(json, Table::headed(["offset", "length"], rows))
    }
}

async fn delete(mut client: Client, id: String, yes: bool) -> Result<Report, Failure> {
    // To CSI, a snapshot that does not exist counts as deleted; to a person, the id may be a typo.
    match found(&mut client, &id).await {
        Ok(snapshot) => confirm(&consequence(&snapshot), yes)?,
        Err(Failure::Call(status)) if status.code() == Code::NotFound => return delete_group(client, id, yes).await,
        Err(failure) => return Err(failure),
    }
    let request = DeleteSnapshotRequest { snapshot_id: id.clone(), ..DeleteSnapshotRequest::default() };
    client.controller.delete_snapshot(request).await?;
    Ok(deleted(&id, true))
}

/// Deletes the snapshots that were taken together under this id, if there are any.
async fn delete_group(mut client: Client, id: String, yes: bool) -> Result<Report, Failure> {
    let request = GetVolumeGroupSnapshotRequest { group_snapshot_id: id.clone(), ..Default::default() };
    let group = match client.groups.get_volume_group_snapshot(request).await {
        Ok(answer) => answer.into_inner().group_snapshot.ok_or(Failure::Incomplete("group"))?,
        Err(status) if status.code() == Code::NotFound => return Ok(deleted(&id, false)),
        Err(status) => return Err(status.into()),
    };
    let snapshot_ids: Vec<_> = group.snapshots.into_iter().map(|one| one.snapshot_id).collect();
    confirm(
        &format!("This deletes the snapshots that were taken together as {id}: {}.", snapshot_ids.join(", ")),
        yes,
    )?;
    let request =
        DeleteVolumeGroupSnapshotRequest { group_snapshot_id: id.clone(), snapshot_ids, ..Default::default() };
    client.groups.delete_volume_group_snapshot(request).await?;
    Ok(deleted(&id, true))
}

fn deleted(id: &str, existed: bool) -> Report {
    let text = if existed { format!("{id} has been deleted") } else { format!("there was no snapshot {id}") };
    Report::new(json!({ "id": id, "existed": existed }), Table::line(text))
}

/// Returns what a person should know before answering.
fn consequence(snapshot: &Snapshot) -> String {
    format!(
        "This deletes snapshot {} of volume {}, taken at {}. Whether a VolumeSnapshotContent names it is not known here: see `kubectl get volumesnapshotcontents`.",
        snapshot.id,
        snapshot.source,
        taken(snapshot)
    )
}

fn row(snapshot: &Snapshot) -> [String; 7] {
    [
        snapshot.id.clone(),
        snapshot.pool.clone(),
        snapshot.kind.clone(),
        Quantity::from(snapshot.size_bytes).to_string(),
        Quantity::from(snapshot.allocated_bytes).to_string(),
        snapshot.source.clone(),
        taken(snapshot),
    ]
}

/// Returns when it was taken, to the second.
fn taken(snapshot: &Snapshot) -> String {
    let seconds = i64::try_from(snapshot.taken / 1_000_000_000).ok();
    let time = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    time.map_or_else(|| "-".to_owned(), |time| time.to_string())
}

fn described(snapshot: &Snapshot) -> Value {
    json!({
        "id": snapshot.id,
        "pool": snapshot.pool,
        "kind": snapshot.kind,
        "bytes": snapshot.size_bytes,
        "allocatedBytes": snapshot.allocated_bytes,
        "source": snapshot.source,
        "family": snapshot.family,
        "taken": taken(snapshot),
    })
}
