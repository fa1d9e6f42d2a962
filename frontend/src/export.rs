//! Volumes with what is noted on each about whose it is, as JSON: `bulkheadctl volume export` prints them, the frontend
//! serves them at /volumes/owners, and `kubectl bulkhead adopt` makes PersistentVolumes of them.

use bulkhead_protocol::{ErrorKind, Listed, VolumeId};
use serde::{Deserialize, Serialize};

use crate::owner::{self, Keys};
use crate::volumes::{Fault, Volumes};

/// A volume as it is exported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Exported {
    /// The node that it is on; empty where that is known from elsewhere.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// When it was read, as RFC 3339 has it; empty where it is read at this moment.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exported_at: String,
    /// The release of the program that read it; empty likewise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub release: String,
    /// Its id.
    pub volume: String,
    /// Its pool.
    pub pool: String,
    /// Whether it is a block volume.
    pub block: bool,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it may have been published, and so may hold data.
    pub ever_published: bool,
    /// What is noted about whose it is; nothing if nothing is.
    pub owner: Option<Keys>,
    /// Why what is noted cannot be read.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

/// Volumes in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ExportedPage {
    /// The volumes.
    pub volumes: Vec<Exported>,
    /// The token for the next page, if there is one.
    pub next: Option<String>,
}

/// A page of at most `entries` volumes after `token`, which the previous page returned; it is empty for the first page.
///
/// # Errors
/// When the helper cannot be reached, or is of a release that notes nothing.
pub async fn page(volumes: &Volumes, entries: usize, token: &str) -> Result<ExportedPage, Fault> {
    if !volumes.keep_owners().await? {
        return Err(Fault::unsupported(
            "bulkhead-privhelper is of a release that does not note whose volumes are: upgrade it",
        ));
    }
    let listed = volumes.list(entries, token).await?;
    let mut page = ExportedPage { next: listed.next, ..ExportedPage::default() };
    for listed in listed.volumes {
        // One that has been deleted in the meantime is left out.
        page.volumes.extend(export(volumes, listed).await?);
    }
    Ok(page)
}

async fn export(volumes: &Volumes, listed: Listed) -> Result<Option<Exported>, Fault> {
    let Listed { volume, pool, size, block, .. } = listed;
    let (ever_published, owner, problem) = match noted(volumes, &volume).await {
        Ok(noted) => noted,
        Err(fault) if fault.is(ErrorKind::NotFound) => return Ok(None),
        Err(fault) if fault.is_of_helper() => return Err(fault),
        // Whoever cannot be asked may hold data.
        Err(fault) => (true, None, fault.to_string()),
    };
    let (volume, pool, bytes) = (volume.to_string(), pool.to_string(), size.get());
    Ok(Some(Exported { volume, pool, block, bytes, ever_published, owner, problem, ..Exported::default() }))
}

async fn noted(volumes: &Volumes, volume: &VolumeId) -> Result<(bool, Option<Keys>, String), Fault> {
    let owned = volumes.owner(volume).await?;
    let (owner, problem) = match owned.owner.map(|record| owner::read(record.as_str())) {
        None => (None, String::new()),
        Some(Ok(keys)) => (Some(keys), String::new()),
        Some(Err(why)) => (None, why.to_string()),
    };
    Ok((owned.used, owner, problem))
}
