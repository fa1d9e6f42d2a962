//! Deleting volumes: renamed to a dot-name, answered, emptied in the background, the quota released last.

use bulkhead_protocol::{Error, ErrorKind, Reply, VolumeId};

use super::absent;
use super::loops::detach;
use super::target::still_published;
use crate::log;
use crate::state::{DOOMED, Doomed, Settlement, Share, State, failed};
use crate::sys::file;

/// Which volumes a request may delete, of those that are published nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletable {
    /// Any.
    Any,
    /// Those that were never published, and so hold nothing.
    OnlyUnused,
}

/// Deletes a volume that is published nowhere. One that is not there is deleted already.
pub fn delete(state: &State, id: &VolumeId, deletable: Deletable) -> Result<Reply, Error> {
    let _claimed = state.claims.claim(id, None)?;
    let Some(volume) = state.volumes.get(id) else { return absent(state, id, None) };
    if deletable == Deletable::OnlyUnused && !volume.unused {
        let message = format!(
            "volume {id} may hold data: it was published, or nothing says that it never was; delete it by hand if nobody wants it"
        );
        return Err(Error::new(ErrorKind::Refused, message));
    }
    let pool = state.pool_at(volume.pool)?;
    if let Some(target) = still_published(state, id, &volume)? {
        let message = format!("volume {id} is published at {target}; unpublish it first");
        return Err(Error::new(ErrorKind::InUse, message));
    }
    detach(state, id, &volume)?;
    let name = format!("{DOOMED}{}.{id}", state.graveyard.number());
    file::rename_new(&pool.directory, id.as_str(), &pool.directory, &name)
        .map_err(|errno| failed("delete volume", id, errno))?;
    if let Err(errno) = file::sync(&pool.directory) {
        // It is deleted as far as anybody can see; only a power cut now could bring it back.
        log::warning!("a deletion could not be written through volume={id} errno={errno}");
    }
    state.volumes.remove(id);
    let share = Share::of(&volume.spec, volume.project.is_some());
    state.graveyard.bury(Doomed { pool: volume.pool, name, project: volume.project, share });
    Ok(Reply::Done)
}

/// Releases the quota, project id and room of a volume that is empty, once nothing is charged to it.
pub fn settle(state: &State, doomed: &Doomed) -> Settlement {
    let Ok(pool) = state.pool_at(doomed.pool) else { return Settlement::Charged };
    if let Some(project) = doomed.project {
        match pool.filesystem.quota(project) {
            Ok(quota) if quota.used_bytes == 0 && quota.used_inodes == 0 => {}
            _ => return Settlement::Charged,
        }
        if let Err(errno) = pool.filesystem.set_quota(project, 0, 0) {
            log::warning!(
                "cannot take a deleted volume's quota away; it is tried again project={} errno={errno}",
                project.0
            );
            return Settlement::Charged;
        }
    }
    pool.filesystem.release(doomed.share, doomed.project);
    Settlement::Settled
}
