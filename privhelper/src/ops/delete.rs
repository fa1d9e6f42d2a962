//! Deleting volumes: rename, reply, empty in the background, release the quota last.

use bulkhead_protocol::{CallId, Error, ErrorKind, Reply};
use rustix::fs::OFlags;

use super::loops::{check_unknown_detached, detach};
use super::target::{check_unknown_unmounted, check_unpublished};
use crate::bookkeeping::{put_back, template};
use crate::state::{Held, Kind, failed, layout, refused};
use crate::sys::{Errno, Error as SysError, Result as SysResult, walk};

/// Which volumes a request may delete, of those that are published nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletable {
    /// Any.
    Any,
    /// Those that were never published, and hold no data.
    OnlyUnused,
    /// Snapshots, which the others are not about.
    Snapshot,
}

/// Deletes a volume that is mounted nowhere, and remembers for which call. Succeeds if it does not exist.
pub fn delete(mut held: Held<'_>, deletable: Deletable, call: CallId) -> Result<Reply, Error> {
    if held.known().is_none() {
        return absent(&held);
    }
    let id = held.id;
    let is_snapshot = held.known().is_some_and(|volume| volume.kind() == Kind::Snapshot);
    if is_snapshot != (deletable == Deletable::Snapshot) {
        let message = if is_snapshot { "is a snapshot, and is deleted as one" } else { "is not a snapshot" };
        return Err(Error::new(ErrorKind::WrongKind, format!("volume {id} {message}")));
    }
    let may_hold_data = || {
        refused(format!(
            "volume {id} may hold data: it was published or restored, or may have been; delete it by hand if it is no longer needed"
        ))
    };
    let unused = held.known().is_some_and(|volume| volume.record.unused);
    if deletable == Deletable::OnlyUnused && !unused {
        return Err(may_hold_data());
    }
    check_unpublished(&mut held)?;
    held.check_unmounted()?;
    held.check_content()?;
    detach(&mut held)?;
    // This comes last, because it is a step of the deletion.
    if deletable == Deletable::OnlyUnused && !is_empty(&held)? {
        return Err(may_hold_data());
    }
    let Some(volume) = held.known() else { return absent(&held) };
    let pool = volume.pool.clone();
    let served = pool.served()?;
    let aside = served.put_aside(held.id.as_str()).inspect_err(|_| {
        // It stays, and so does what was removed as a step of its deletion. If that fails, whoever uses it tries again.
        let _ = put_back(&mut held);
    });
    let aside = aside.map_err(|error| failed("delete volume", held.id, error))?;
    held.delete(&aside, call);
    held.state.wake_emptier(&pool, aside.is_in_place());
    // If this failed, the volume is gone for all to see, but only a repeated request may report success: a power cut
    // could bring it back.
    aside.synced().map_err(|error| failed("sync to disk the deletion of volume", held.id, error))?;
    Ok(Reply::Done)
}

/// Returns whether a volume that was never published holds nothing: an administrator may have restored something before
/// its first use, which its record does not say. A data directory that is empty is gone after this.
fn is_empty(held: &Held<'_>) -> Result<bool, Error> {
    let Some(volume) = held.known() else { return Ok(true) };
    let fail = |error| failed("look for data in volume", held.id, error);
    match volume.kind() {
        Kind::Directory => match layout::remove_empty_data(&volume.pool.served()?.directory, held.id) {
            Err(SysError { errno: Errno::NOTEMPTY | Errno::EXIST, .. }) => Ok(false),
            Err(SysError { errno: Errno::NOENT, .. }) => Ok(true),
            removed => removed.map(|()| true).map_err(fail),
        },
        // What it holds from the beginning is no tenant's.
        Kind::Filesystem => template::is_fresh(&held.open_content(OFlags::RDONLY)?).map_err(fail),
        Kind::Block | Kind::Snapshot => {
            walk::next_data(held.open_content(OFlags::RDONLY)?, 0).map(|data| data.is_none()).map_err(fail)
        }
    }
}

/// The reply for an unknown volume: success only if it certainly does not exist, and no power cut can bring it back.
fn absent(held: &Held<'_>) -> Result<Reply, Error> {
    let synced: SysResult<()> = held.state.pools.iter().try_for_each(|pool| match &pool.state {
        Ok(served) => served.sync_names_again(),
        Err(_) => Ok(()),
    });
    synced.map_err(|error| failed("sync to disk the deletion of volume", held.id, error))?;
    match held.state.unknown(held.id) {
        error if error.kind == ErrorKind::NotFound => {}
        error => return Err(error),
    }
    // It may be in a pool that is not configured any more.
    check_unknown_detached(held.state, held.id)?;
    check_unknown_unmounted(held.state, held.id)?;
    Ok(Reply::Done)
}
