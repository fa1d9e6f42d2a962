//! Loop devices of block volumes: one per volume, shared by its targets, which are all read-only or all read-write.

use std::os::fd::OwnedFd;

use bulkhead_protocol::{BlockSize, Error, ErrorKind, Reply, VolumeId, VolumeKind};
use rustix::fs::OFlags;

use super::filesystem::let_go;
use super::target::check_unpublished;
use super::use_first;
use crate::state::{Attached, Device, Held, Kind, Lent, State, busy, failed, in_use, label, wrong_kind};
use crate::sys::{Errno, failed_with, loopcontrol};

/// Attaches a block volume's image to a loop device.
pub fn loop_attach(mut held: Held<'_>, read_only: bool) -> Result<Reply, Error> {
    let (volume, _) = held.existing(Kind::Block)?;
    let VolumeKind::Image { block_size, .. } = volume.record.spec.kind else {
        return Err(wrong_kind(held.id, Kind::Block));
    };
    if volume.device.is_some() {
        held.check_content()?;
        let attached = attached(&mut held)?;
        if let Some(attached) = attached.as_ref().filter(|attached| attached.device().read_only == read_only) {
            return lend(&held, attached).map(|_| Reply::Done);
        }
        let id = held.id;
        check_unpublished(&mut held).map_err(|error| match (error.kind, &attached) {
            (ErrorKind::InUse, Some(attached)) => {
                let how = if attached.device().read_only { "read-only" } else { "read-write" };
                in_use(format!("volume {id} is published {how}; all its targets must be {how}"))
            }
            (ErrorKind::InUse, None) => in_use(format!(
                "volume {id} is published on a device whose image another program has replaced; unpublish it everywhere first"
            )),
            _ => error,
        })?;
        check_elsewhere(&held)?;
        detach(&mut held)?;
    }
    attach(&mut held, block_size, read_only)?;
    Ok(Reply::Done)
}

/// Attaches a volume's image, which is not attached, and returns the device.
pub fn attach(held: &mut Held<'_>, block_size: BlockSize, read_only: bool) -> Result<Device, Error> {
    let image = held.open_content(OFlags::RDWR)?;
    use_first(held, |held| bind(held, &image, block_size, read_only))
}

fn bind(held: &mut Held<'_>, image: &OwnedFd, block_size: BlockSize, read_only: bool) -> Result<Device, Error> {
    let attached =
        held.state.loops.attach(held.id, image, block_size, read_only).map_err(|error| match error.errno {
            Errno::NODEV => {
                busy(format!("attach volume {}: other programs are taking every free loop device; try again", held.id))
            }
            Errno::BUSY => busy(format!(
                "attach volume {}: too many loop devices are waiting to be removed, or one does not answer; try again",
                held.id
            )),
            _ => failed("attach volume", held.id, error),
        })?;
    held.change(|volume| volume.device = Some(attached.device()));
    let lent = lend(held, &attached).inspect_err(|_| {
        // If this fails too, the device stays attached, which the next attempt finds.
        let _ = detach(held);
    })?;
    Ok(lent.device())
}

/// Sees to it that no later helper uses the number of the volume's device soon.
pub fn lend(held: &Held<'_>, attached: &Attached) -> Result<Lent, Error> {
    let volume = held.known().ok_or_else(|| held.state.unknown(held.id))?;
    let lent = volume.pool.served()?.lend(attached, held.state.loops.used());
    lent.map_err(|error| failed("note the loop device of volume", held.id, error))
}

/// Detaches the loop device of a volume, whose kind is asked for, after the filesystem on it was unmounted if it has one.
pub fn loop_detach(mut held: Held<'_>, kind: Kind) -> Result<Reply, Error> {
    let Some(volume) = held.known() else { return absent(held.state, held.id) };
    if volume.kind() != kind && [volume.kind(), kind].contains(&Kind::Filesystem) {
        return Err(wrong_kind(held.id, kind));
    }
    check_unpublished(&mut held)?;
    check_elsewhere(&held)?;
    detach(&mut held)?;
    Ok(Reply::Done)
}

/// Tells a block volume's loop device, if it has one, that its image has grown.
pub fn loop_resize(held: &Held<'_>) -> Result<Reply, Error> {
    let (volume, _) = held.existing(Kind::Block)?;
    if let Some(device) = volume.device {
        let resized = held.state.loops.refresh(device.number(), volume.content);
        resized.map_err(|error| failed("resize the device of volume", held.id, error))?;
    }
    Ok(Reply::Size(volume.record.spec.size))
}

/// Checks that the host does not show a volume any more where the start saw it without finding it published. Otherwise
/// the host need not be asked: a device that is detached leaves nothing behind but nodes of a number that is never used
/// again.
pub fn check_elsewhere(held: &Held<'_>) -> Result<(), Error> {
    if held.known().is_some_and(|volume| volume.seen_elsewhere) { held.check_unmounted() } else { Ok(()) }
}

/// Detaches the device of a volume that is published nowhere, if it has one, and unmounts the filesystem on it before.
pub fn detach(held: &mut Held<'_>) -> Result<(), Error> {
    let_go(held)?;
    let Some((device, image)) = held.known().and_then(|volume| Some((volume.device?, volume.content))) else {
        return Ok(());
    };
    let left = held.state.loops.detach(held.id, device, image);
    let left = left.map_err(|error| failed("detach volume", held.id, error))?;
    held.change(|volume| volume.device = left);
    match left {
        None => Ok(()),
        Some(_) => {
            Err(busy(format!("the device of volume {} is open in another process; close it there first", held.id)))
        }
    }
}

/// The volume's device, if it is still bound to the volume's image. An unbind requested by others is cancelled.
pub fn attached(held: &mut Held<'_>) -> Result<Option<Attached>, Error> {
    let Some((device, image)) = held.known().and_then(|volume| Some((volume.device?, volume.content))) else {
        return Ok(None);
    };
    let revived = held.state.loops.revive(held.id, device, image);
    let revived = revived.map_err(|error| failed("inspect the device of volume", held.id, error))?;
    if let Some(now) = revived.as_ref().map(Attached::device).filter(|now| *now != device) {
        held.change(|volume| volume.device = Some(now));
    }
    Ok(revived)
}

/// The reply to a request to detach an unknown volume: success only if it certainly does not exist, and no device says
/// that it is bound to its image.
fn absent(state: &State, id: &VolumeId) -> Result<Reply, Error> {
    match state.unknown(id) {
        error if error.kind == ErrorKind::NotFound => check_unknown_detached(state, id).map(|()| Reply::Done),
        error => Err(error),
    }
}

/// Checks that no loop device is bound to the image of a volume that is not known.
///
/// # Errors
/// `InUse` when one was at start, and still is.
pub fn check_unknown_detached(state: &State, id: &VolumeId) -> Result<(), Error> {
    let binding = |number: u32| state.loops.open_existing(number).and_then(loopcontrol::binding);
    let is_bound = |number: &&u32| !failed_with(&binding(**number), Errno::NXIO);
    match state.attached.get(label(id)).and_then(|numbers| numbers.iter().find(is_bound)) {
        None => Ok(()),
        Some(number) => Err(in_use(format!(
            "volume {id} is in no pool that is served, but attached to loop device {number}; serve its pool, or detach it by hand (losetup -d)"
        ))),
    }
}
