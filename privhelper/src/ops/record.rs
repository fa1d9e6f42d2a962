//! What is written down of a volume in its own directory, which pods cannot reach.

use bulkhead_protocol::{Error, VolumeId, VolumeSpec};
use rustix::fs::OFlags;

use crate::state::{Served, State, Volume, failed, write_spec};
use crate::sys::{Result as SysResult, file};

/// Writes down what a volume is now; this also makes a quota set before it last through a power cut.
pub fn record(pool: &Served, id: &VolumeId, spec: &VolumeSpec, unused: bool) -> SysResult<()> {
    let outer = file::open(&pool.directory, id.as_str(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    write_spec(&outer, spec, unused)?;
    file::touch_and_sync(&outer)
}

/// Writes down that a volume is used, before anybody can write to it. Once in its life; later calls do nothing.
pub fn mark_used(state: &State, pool: &Served, id: &VolumeId, volume: &Volume) -> Result<(), Error> {
    if volume.unused {
        record(pool, id, &volume.spec, false)
            .map_err(|errno| failed("write down the first use of volume", id, errno))?;
        state.volumes.update(id, |volume| volume.unused = false);
    }
    Ok(())
}
