//! Commands that show volumes.

use bulkhead_console::report::{Report, Table};
use bulkhead_frontend::proto::inspection::get_volume_response::Ownership;
use bulkhead_frontend::proto::inspection::{
    GetVolumeRequest, ListOrphansRequest, ListVolumesRequest, ListVolumesResponse, Volume,
};
use bulkhead_model::quantity::Quantity;
use serde_json::{Value, json};
use tonic::Code;

use crate::client::Client;
use crate::failure::Failure;
use crate::{pages, snapshot, targets};

pub async fn list(mut client: Client) -> Result<Report, Failure> {
    let mut volumes = Vec::new();
    let ask = async |starting_token| client.inspection.list_volumes(ListVolumesRequest { starting_token }).await;
    let take = |page: ListVolumesResponse| {
        volumes.extend(page.volumes);
        Ok(page.next_token)
    };
    pages::each(ask, take).await?;
    Ok(table(&volumes))
}

pub async fn orphans(mut client: Client) -> Result<Report, Failure> {
    let volumes = client.inspection.list_orphans(ListOrphansRequest {}).await?.into_inner().volumes;
    Ok(table(&volumes))
}

pub async fn show(mut client: Client, id: String) -> Result<Report, Failure> {
    let targets = targets::seen(&id);
    let request = GetVolumeRequest { id, without_owner: false, with_sharing: true };
    let answer = client.inspection.get_volume(request).await?.into_inner();
    let (ownership, reason) = (answer.ownership(), answer.reason);
    let volume = answer.volume.ok_or(Failure::Incomplete("volume"))?;
    let snapshots: Vec<_> = match snapshot::all(&mut client, &volume.id).await {
        Ok(snapshots) => snapshots.into_iter().map(|snapshot| snapshot.id).collect(),
        // A helper or a frontend that is too old to say has taken none.
        Err(Failure::Call(status)) if is_too_old(status.code()) => Vec::new(),
        Err(failure) => return Err(failure),
    };
    let known = |text: &str| match ownership {
        _ if !text.is_empty() => text.to_owned(),
        Ownership::Known => "none".to_owned(),
        Ownership::NoAgent | Ownership::Unknown => format!("unknown: {reason}"),
        Ownership::Unspecified => "unknown: bulkhead-frontend is older than bulkheadctl and does not say".to_owned(),
    };
    let inodes = match (volume.used_inodes, volume.inodes) {
        (Some(used), Some(limit)) => format!("{used} of {limit} used"),
        (None, Some(limit)) => format!("at most {limit}"),
        (_, None) => "-".to_owned(),
    };
    let settings: Vec<_> = volume.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let family = named(&volume.family).unwrap_or(&volume.id);
    // A directory is never copied.
    let copies = [
        ("source", named(&volume.source).unwrap_or("none").to_owned()),
        ("family", family.to_owned()),
        ("shared", counted(volume.shared_bytes)),
        ("own", counted(volume.own_bytes)),
        ("snapshots", if snapshots.is_empty() { "none".to_owned() } else { snapshots.join(", ") }),
    ];
    let copies = copies.into_iter().filter(|_| volume.kind != "directory");
    let facts = [
        ("id", volume.id.clone()),
        ("pool", volume.pool.clone()),
        ("kind", volume.kind.clone()),
        ("size", size(&volume)),
        ("used", counted(volume.used_bytes)),
        ("available", counted(volume.available_bytes)),
        ("inodes", inodes),
        ("settings", settings.join(", ")),
        ("targets", targets::described(volume.targets, &targets)),
        ("condition", volume.condition.clone()),
        ("PersistentVolume", known(&volume.persistent_volume)),
        ("claim", known(&volume.claim)),
    ];
    let mut json = described(&volume);
    json["source"] = json!(named(&volume.source));
    json["family"] = json!(family);
    json["sharedBytes"] = json!(volume.shared_bytes);
    json["ownBytes"] = json!(volume.own_bytes);
    json["snapshots"] = json!(snapshots);
    json["targetPaths"] = json!(targets);
    json["ownerKnown"] = json!(ownership == Ownership::Known || !volume.persistent_volume.is_empty());
    Ok(Report::new(json, Table::facts(facts.into_iter().chain(copies))))
}

fn table(volumes: &[Volume]) -> Report {
    let headings = ["id", "pool", "kind", "size", "used", "targets", "condition"];
    let sentences = volumes.iter().filter(|volume| volume.abnormal);
    let sentences = sentences.map(|volume| format!("{}: {}", volume.id, volume.condition));
    let table = Table::headed(headings, volumes.iter().map(row)).noting(sentences);
    Report::new(volumes.iter().map(described).collect(), table)
}

fn row(volume: &Volume) -> [String; 7] {
    [
        volume.id.clone(),
        volume.pool.clone(),
        volume.kind.clone(),
        Quantity::from(volume.size_bytes).to_string(),
        counted(volume.used_bytes),
        volume.targets.to_string(),
        if volume.abnormal { "abnormal" } else { "healthy" }.to_owned(),
    ]
}

/// The size; of a volume with a filesystem of its own, also what of it is there for files.
fn size(volume: &Volume) -> String {
    let size = Quantity::from(volume.size_bytes);
    match volume.inside_bytes {
        Some(inside) => format!("{size}, of which {} are room for files", Quantity::from(inside)),
        None if volume.kind == "filesystem" => {
            format!("{size}; how much of it is room for files is known while it is published")
        }
        None => size.to_string(),
    }
}

/// A number of bytes, or `-` if nothing counts them.
fn counted(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| Quantity::from(bytes).to_string())
}

fn described(volume: &Volume) -> Value {
    json!({
        "id": volume.id,
        "pool": volume.pool,
        "kind": volume.kind,
        "bytes": volume.size_bytes,
        "insideBytes": volume.inside_bytes,
        "usedBytes": volume.used_bytes,
        "availableBytes": volume.available_bytes,
        "usedInodes": volume.used_inodes,
        "inodes": volume.inodes,
        "targets": volume.targets,
        "abnormal": volume.abnormal,
        "condition": volume.condition,
        "settings": volume.settings,
        "persistentVolume": named(&volume.persistent_volume),
        "claim": named(&volume.claim),
    })
}

fn is_too_old(code: Code) -> bool {
    matches!(code, Code::Unimplemented | Code::FailedPrecondition)
}

fn named(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}
