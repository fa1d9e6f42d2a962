//! Publishing block volumes: the node of the volume's loop device, bound to an empty file at the target.

use bulkhead_protocol::{Error, ErrorKind, MountFlags, Reply, TargetPath, VolumeId};

use super::existing_of;
use super::loops::attached;
use super::target::{Target, publish};
use crate::state::{Kind, State, failed};
use crate::sys::mount::MountAttrFlags;

/// Binds the node of a volume's attached loop device to a target.
pub fn make_device(state: &State, id: &VolumeId, path: &TargetPath, exclusive: bool) -> Result<Reply, Error> {
    let volume = existing_of(state, id, Kind::Block)?;
    let target = Target::open_to_publish(state, path, id, Kind::Block)?;
    let Some(device) = attached(state, id, &volume)? else {
        let message = format!("volume {id} is attached to no loop device; attach it first");
        return Err(Error::new(ErrorKind::Invalid, message));
    };
    let flags = MountFlags { read_only: device.read_only, ..MountFlags::default() };
    publish(state, id, &volume, &target, flags, exclusive, || {
        let node = state.loops.node(device.number).map_err(|errno| failed("open the device of volume", id, errno))?;
        // Read-only is the device's own: a read-only mount would not keep anybody from writing to it.
        Ok((node, MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC))
    })
}
