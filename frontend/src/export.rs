//! The volumes of the node, with what is recorded on each about whose it is.

use bulkhead_model::exported::{Exported, ExportedPage, ExportedSnapshot, SnapshotPage};
use bulkhead_model::owner::{self, Keys};
use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{ErrorKind, Listed, Snapshot, VolumeId};

use crate::volumes::Volumes;

/// A page of at most `entries` volumes after `token`, which the previous page returned; it is empty for the first page.
///
/// # Errors
/// When the helper cannot be reached, or is of a release that records nothing.
pub async fn page(volumes: &Volumes, entries: usize, token: &str) -> Result<ExportedPage, Fault> {
    if !volumes.keep_owners().await? {
        return Err(Fault::unsupported(
            "bulkhead-privhelper is of a release that does not note whose volumes are: upgrade it",
        ));
    }
    let listed = volumes.list(entries, token).await?;
    let mut page = ExportedPage { next: listed.next, ..ExportedPage::default() };
    for listed in listed.entries {
        // One that has been deleted in the meantime is left out.
        page.volumes.extend(export(volumes, listed).await?);
    }
    Ok(page)
}

/// A page of snapshots, in the same way. Of what they are is not said: those who ask may not know what volumes there
/// are.
///
/// # Errors
/// When the helper cannot be reached. One of a release that takes none has none.
pub async fn snapshots(volumes: &Volumes, entries: usize, token: &str) -> Result<SnapshotPage, Fault> {
    let page = match volumes.list_snapshots(None, entries, token).await {
        Err(fault) if fault.is(ErrorKind::Unsupported) => return Ok(SnapshotPage::default()),
        page => page?,
    };
    let export = |Snapshot { snapshot, pool, allocated: bytes, .. }| ExportedSnapshot {
        snapshot: VolumeId::to_string(&snapshot),
        pool: pool.to_string(),
        bytes,
    };
    Ok(SnapshotPage { snapshots: page.entries.into_iter().map(export).collect(), next: page.next })
}

async fn export(volumes: &Volumes, listed: Listed) -> Result<Option<Exported>, Fault> {
    let Listed { volume, pool, size, block, .. } = listed;
    let (ever_published, owner, problem) = match recorded(volumes, &volume).await {
        Ok(recorded) => recorded,
        Err(fault) if fault.is(ErrorKind::NotFound) => return Ok(None),
        Err(fault) if fault.is_of_helper() => return Err(fault),
        // Whoever cannot be asked may hold data.
        Err(fault) => (true, None, fault.to_string()),
    };
    let (volume, pool, bytes) = (volume.to_string(), pool.to_string(), size.get());
    Ok(Some(Exported { volume, pool, block, bytes, ever_published, owner, problem, ..Exported::default() }))
}

async fn recorded(volumes: &Volumes, volume: &VolumeId) -> Result<(bool, Option<Keys>, String), Fault> {
    let owned = volumes.owner(volume).await?;
    let (owner, problem) = match owned.owner.map(|record| owner::read(record.as_str())) {
        None => (None, String::new()),
        Some(Ok(keys)) => (Some(keys), String::new()),
        Some(Err(why)) => (None, why.to_string()),
    };
    Ok((owned.used, owner, problem))
}
