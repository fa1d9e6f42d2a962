//! Deleting volumes: rename, reply, empty in the background, release the quota last.

use bulkhead_protocol::{Error, ErrorKind, Reply, VolumeId};

use super::absent;
use super::loops::detach;
use super::target::check_unpublished;
use crate::log;
use crate::state::{Deletion, Served, State, failed};

/// Which volumes a request may delete, of those that are published nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletable {
    /// Any.
    Any,
    /// Those that were never published, and so hold no data.
    OnlyUnused,
}

/// Deletes a volume that is published nowhere. Succeeds if it does not exist.
pub fn delete(state: &State, id: &VolumeId, deletable: Deletable) -> Result<Reply, Error> {
    let unsynced = |errno| failed("sync to disk the deletion of volume", id, errno);
    let Some(volume) = state.volumes.get(id) else {
        for pool in state.pools.iter().filter_map(|pool| pool.served().ok()) {
            pool.sync_again().map_err(unsynced)?;
        }
        return absent(state, id, None);
    };
    if deletable == Deletable::OnlyUnused && !volume.record.unused {
        let message = format!(
            "volume {id} may hold data: it was published, or may have been; delete it by hand if it is no longer needed"
        );
        return Err(Error::new(ErrorKind::Refused, message));
    }
    let pool = state.pool_at(volume.pool)?;
    check_unpublished(state, id, &volume)?;
    detach(state, id, &volume)?;
    let name = pool.put_aside(id.as_str()).map_err(|errno| failed("delete volume", id, errno))?;
    let synced = pool.sync();
    state.volumes.remove(id);
    pool.deletions.add(Deletion { name, share: volume.share() });
    // If this failed, the volume is gone for all to see, but only a repeated request may report success: a power cut
    // could bring it back.
    synced.map_err(unsynced)?;
    Ok(Reply::Done)
}

/// Releases the quota, project id and room of an emptied volume once nothing is charged to its project any more: an
/// unlinked file may still be open, or the filesystem may take a while. Returns whether it could.
pub fn release(pool: &Served, deletion: &Deletion) -> bool {
    if let Some(project) = deletion.share.project {
        let quota = pool.filesystem.quota(project);
        if !quota.is_ok_and(|quota| quota.used_bytes == 0 && quota.used_inodes == 0) {
            return false;
        }
        if let Err(errno) = pool.filesystem.set_quota(project, (0, 0)) {
            log::warning!("cannot release a deleted volume's quota; trying again project={} errno={errno}", project.0);
            return false;
        }
    }
    pool.filesystem.release(deletion.share);
    true
}
