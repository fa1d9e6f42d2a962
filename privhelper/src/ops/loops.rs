//! Loop devices of block volumes: one per volume, shared by its targets, which are all read-only or all read-write.

use bulkhead_protocol::{Error, ErrorKind, Reply, VolumeId, VolumeKind};
use rustix::fs::OFlags;

use super::pins::check_unpinned;
use super::target::check_unpublished;
use super::{absent, existing, mark_used, wrong_kind};
use crate::state::{Device, Kind, State, Volume, failed, layout};
use crate::sys::Errno;

/// Attaches a block volume's image to a loop device.
pub fn loop_attach(state: &State, id: &VolumeId, read_only: bool) -> Result<Reply, Error> {
    let volume = existing(state, id, Kind::Block)?;
    let VolumeKind::Image { block_size, .. } = volume.record.spec.kind else { return Err(wrong_kind(id, Kind::Block)) };
    let pool = state.pool_at(volume.pool)?;
    let cannot = |errno| failed("attach volume", id, errno);
    let image = layout::open_content(&pool.directory, id, Kind::Block, OFlags::RDWR).map_err(cannot)?;
    if let Some(device) = volume.device {
        let ours = state.loops.revive(device.number, volume.content).map_err(cannot)?;
        if ours && device.read_only == read_only {
            return Ok(Reply::Done);
        }
        if !volume.targets.is_empty() {
            let why = match (ours, device.read_only) {
                (false, _) => "on a device whose image another program has replaced; unpublish it everywhere first",
                (true, true) => "read-only; all its targets must be read-only",
                (true, false) => "read-write; all its targets must be read-write",
            };
            return Err(Error::new(ErrorKind::InUse, format!("volume {id} is published {why}")));
        }
        check_unpinned(state, id, None)?;
        detach(state, id, &volume)?;
    }
    mark_used(state, pool, id, &volume)?;
    let device = state.loops.attach(id, &image, block_size, read_only).map_err(|errno| match errno {
        Errno::NODEV => {
            let message = format!("attach volume {id}: other programs are taking every free loop device; try again");
            Error::new(ErrorKind::Busy, message)
        }
        errno => cannot(errno),
    })?;
    state.volumes.update(id, |volume| volume.device = Some(device));
    Ok(Reply::Done)
}

/// Detaches a block volume's loop device.
pub fn loop_detach(state: &State, id: &VolumeId) -> Result<Reply, Error> {
    let Some(volume) = state.volumes.get(id) else { return absent(state, id, None) };
    check_unpublished(state, id, &volume)?;
    detach(state, id, &volume)?;
    Ok(Reply::Done)
}

/// Tells a block volume's loop device, if it has one, that its image has grown.
pub fn loop_resize(state: &State, id: &VolumeId) -> Result<Reply, Error> {
    let volume = existing(state, id, Kind::Block)?;
    if let Some(device) = volume.device {
        state.loops.refresh(device.number).map_err(|errno| failed("resize the device of volume", id, errno))?;
    }
    Ok(Reply::Size(volume.record.spec.size))
}

/// Detaches the device of a volume that is published nowhere, if it has one.
pub fn detach(state: &State, id: &VolumeId, volume: &Volume) -> Result<(), Error> {
    let Some(device) = volume.device else { return Ok(()) };
    state.loops.detach(device).map_err(|errno| match errno {
        Errno::BUSY => {
            let message = format!("the device of volume {id} is open in another process; close it there first");
            Error::new(ErrorKind::Busy, message)
        }
        errno => failed("detach volume", id, errno),
    })?;
    state.volumes.update(id, |volume| volume.device = None);
    Ok(())
}

/// The volume's device, if it is still bound to the volume's image. An unbind requested by others is cancelled.
pub fn attached(state: &State, id: &VolumeId, volume: &Volume) -> Result<Option<Device>, Error> {
    let Some(device) = volume.device else { return Ok(None) };
    let ours = state.loops.revive(device.number, volume.content);
    let ours = ours.map_err(|errno| failed("inspect the device of volume", id, errno))?;
    Ok(ours.then_some(device))
}
