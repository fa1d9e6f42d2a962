//! Publishing block volumes: the node of the volume's loop device, bound to an empty file at the target.

use bulkhead_protocol::{Error, ErrorKind, MountFlags, Reply, TargetPath, VolumeId, VolumeKind};
use rustix::fs::FileType;

use super::loops::attached;
use super::target::{Form, hold, is_published, note, unpublish};
use super::{absent, existing_image, wrong_kind};
use crate::state::{Purpose, State, failed};
use crate::sys::loopdevice::MAJOR;
use crate::sys::mount::MountAttrFlags;

/// Binds the node of a volume's attached loop device to a target.
pub fn make_device(state: &State, id: &VolumeId, target: &TargetPath, exclusive: bool) -> Result<Reply, Error> {
    let _claimed = state.claims.claim(id, Some(target))?;
    let volume = existing_image(state, id)?;
    let directory = state.publish_directory(target)?;
    directory.check_shape(target, Purpose::Device)?;
    directory.check_record(target, id, &state.driver)?;
    let Some(device) = attached(state, id, &volume)? else {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("volume {id} is attached to no loop device; attach it first"),
        ));
    };
    let flags = MountFlags { read_only: device.read_only, ..MountFlags::default() };
    let held = hold(state, target)?;
    if is_published(state, id, &volume, &held, flags, exclusive)? {
        return Ok(Reply::Done);
    }
    let node = state.loops.node(device.number).map_err(|errno| failed("open the device of volume", id, errno))?;
    held.make(Form::File)?;
    // Read-only is the device's own: a read-only mount would not keep anybody from writing to it.
    let flags_of_mount = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let source = held.bind(&node, flags_of_mount)?;
    note(state, id, &held, source, flags);
    Ok(Reply::Done)
}

/// Removes a volume's device node from a target, and the target.
pub fn remove_device(state: &State, id: &VolumeId, target: &TargetPath) -> Result<Reply, Error> {
    let _claimed = state.claims.claim(id, Some(target))?;
    let Some(volume) = state.volumes.get(id) else { return absent(state, id, Some(target)) };
    if !matches!(volume.spec.kind, VolumeKind::Image { .. }) {
        return Err(wrong_kind(id, "a directory volume, not a block volume"));
    }
    let number = volume.device.map(|device| (MAJOR, device.number));
    unpublish(state, id, &volume, target, Purpose::Device, |status| {
        status.file_type == FileType::BlockDevice && Some(status.device) == number
    })
}
