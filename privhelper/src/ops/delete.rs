//! Deleting volumes: renamed, answered, emptied in the background, the quota released last.

use bulkhead_protocol::{Error, ErrorKind, Reply, VolumeId};

use super::absent;
use super::loops::detach;
use super::target::check_unpublished;
use crate::log;
use crate::state::{Deletion, State, failed, layout};
use crate::sys::file;

/// Which volumes a request may delete, of those that are published nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletable {
    /// Any.
    Any,
    /// Those that were never published, and so hold no data.
    OnlyUnused,
}

/// Deletes a volume that is published nowhere. One that does not exist is deleted already.
pub fn delete(state: &State, id: &VolumeId, deletable: Deletable) -> Result<Reply, Error> {
    let Some(volume) = state.volumes.get(id) else { return absent(state, id, None) };
    if deletable == Deletable::OnlyUnused && !volume.record.unused {
        let message = format!(
            "volume {id} may hold data: it was published, or it is not known for certain that it never was; delete it by hand if it is no longer needed"
        );
        return Err(Error::new(ErrorKind::Refused, message));
    }
    let pool = state.pool_at(volume.pool)?;
    check_unpublished(state, id, &volume)?;
    detach(state, id, &volume)?;
    let name = layout::deleted_name(state.deletions.new_number(), id.as_str());
    file::rename_new(&pool.directory, id.as_str(), &pool.directory, &name)
        .map_err(|errno| failed("delete volume", id, errno))?;
    if let Err(errno) = file::sync(&pool.directory) {
        // It is deleted as far as anybody can see; only a power cut now could bring it back.
        log::warning!("a deletion could not be synced to disk volume={id} errno={errno}");
    }
    state.volumes.remove(id);
    state.deletions.add(Deletion { pool: volume.pool, name, share: volume.share() });
    Ok(Reply::Done)
}

/// Releases the quota, project id and room of a deleted volume that is empty, once nothing is charged to its project any
/// more: an open file that was unlinked may be, or the filesystem takes a while. Whether it could.
pub fn release(state: &State, deletion: &Deletion) -> bool {
    let Ok(pool) = state.pool_at(deletion.pool) else { return false };
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
