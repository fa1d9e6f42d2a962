//! Whose a volume is: a note that the frontend leaves on the volume's own directory, beside the record, for whoever
//! finds the volume when nothing else is left. It is kept, and never interpreted: nothing depends on it.

use bulkhead_protocol::{Error, OwnerRecord, Pace, Reply, VolumeId};

use crate::place::attributes::Attribute;
use crate::state::{Held, State, failed, layout};
use crate::sys::{Errno, Error as SysError, Result as SysResult};

/// Records whose a volume is.
pub fn set_owner(held: &Held<'_>, owner: &OwnerRecord) -> Result<Reply, Error> {
    let Some(volume) = held.known() else { return Err(held.state.unknown(held.id)) };
    let (served, value) = (volume.pool.served()?, owner.as_str().as_bytes());
    let write = || {
        let outer = layout::open_volume(&served.directory, held.id.as_str())?;
        served.attributes.write(held.id.as_str(), Attribute::Owner, value)?;
        served.sync(outer)
    };
    write().map(|()| Reply::Done).map_err(|error| failed("note the owner of volume", held.id, error))
}

/// Returns what is recorded about whose a volume is, and whether it may hold data.
pub fn owner(state: &State, id: &VolumeId) -> Result<Reply, Error> {
    let seen = state.see(id, Pace::Prompt)?;
    let served = seen.volume.pool.served()?;
    let read = || -> SysResult<_> {
        let value = served.attributes.read(id.as_str(), Attribute::Owner)?;
        let owner = value.map(|bytes| str::from_utf8(&bytes).ok()?.parse().ok());
        owner.map(|owner| owner.ok_or(SysError::of(Errno::BADMSG))).transpose()
    };
    let owner = read().map_err(|error| failed("read the owner of volume", id, error))?;
    Ok(Reply::Owner { owner, used: !seen.volume.record.unused })
}
