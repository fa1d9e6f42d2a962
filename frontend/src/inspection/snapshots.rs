//! Snapshots, as an operator sees them.

use std::time::Duration;

use bulkhead_model::volumes::Fault;
use bulkhead_protocol::{ErrorKind, Snapshot as Taken};
use tokio::time::timeout;

use crate::helper::Sharing;
use crate::proto::inspection::{ListSnapshotsRequest, ListSnapshotsResponse, Snapshot, Volume};
use crate::volumes::{Volumes, existing};

/// How long a volume's image may take to be read through. One in as many pieces as can be copied takes about a second.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many snapshots are listed at a time.
const PAGE: usize = 500;

/// A page of snapshots.
///
/// # Errors
/// `BadToken` when no page can have returned the token.
pub(super) async fn page(volumes: &Volumes, request: &ListSnapshotsRequest) -> Result<ListSnapshotsResponse, Fault> {
    let source = if request.source.is_empty() { None } else { Some(existing(&request.source)?) };
    let page = volumes.list_snapshots(source.as_ref(), PAGE, &request.starting_token).await?;
    let snapshots = page.entries.into_iter().map(described).collect();
    Ok(ListSnapshotsResponse { snapshots, next_token: page.next.unwrap_or_default() })
}

/// A snapshot in the words of volumes.
pub(super) fn described(taken: Taken) -> Snapshot {
    Snapshot {
        id: taken.snapshot.to_string(),
        pool: taken.pool.to_string(),
        kind: if taken.block { "block" } else { "filesystem" }.to_owned(),
        size_bytes: taken.size.get(),
        allocated_bytes: taken.allocated,
        source: taken.origin.source.to_string(),
        family: taken.origin.family.to_string(),
        taken: taken.origin.copied,
    }
}

/// A volume, with what it began as a copy of.
///
/// # Errors
/// When the helper does not say, although it could.
pub(super) async fn with_origin(volumes: &Volumes, volume: Volume) -> Result<Volume, Fault> {
    match volumes.origin(&existing(&volume.id)?).await {
        Ok(Some(origin)) => {
            let (source, family) = (origin.source.to_string(), origin.family.to_string());
            Ok(Volume { source, family, ..volume })
        }
        Ok(None) => Ok(volume),
        // It is too old to say, and has copied none.
        Err(fault) if fault.is(ErrorKind::Unsupported) => Ok(volume),
        Err(fault) => Err(fault),
    }
}

/// A volume, with how much of its image it shares, if that can be said soon. It cannot for a directory, by an older helper, and
/// where the disk does not answer: then whoever looks at the volume needs all the rest.
pub(super) async fn with_sharing(volumes: &Volumes, volume: Volume) -> Volume {
    let asked = async { volumes.sharing(&existing(&volume.id)?).await };
    match timeout(PATIENCE, asked).await {
        Ok(Ok(Sharing { shared, own })) => Volume { shared_bytes: Some(shared), own_bytes: Some(own), ..volume },
        Ok(Err(_)) | Err(_) => volume,
    }
}
