//! Unpublishing volumes from targets.

use bulkhead_protocol::{Error, ErrorKind, Reply, TargetPath, VolumeId};
use rustix::fs::FileType;

use super::target::{Mounted, Target, is_gone, moved};
use super::{absent, wrong_kind};
use crate::state::{Kind, State, Volume};
use crate::sys::loopdevice::MAJOR;

/// Unmounts a directory volume from a target and removes the target.
pub fn unmount(state: &State, id: &VolumeId, path: &TargetPath) -> Result<Reply, Error> {
    unpublish(state, id, path, Kind::Directory)
}

/// Unmounts a block volume's device node from a target and removes the target.
pub fn remove_device(state: &State, id: &VolumeId, path: &TargetPath) -> Result<Reply, Error> {
    unpublish(state, id, path, Kind::Block)
}

/// Unmounts everything at the target that is proved to be this volume, notes that, then removes the target if it was
/// made for a volume. Succeeds if nothing is there.
fn unpublish(state: &State, id: &VolumeId, path: &TargetPath, kind: Kind) -> Result<Reply, Error> {
    if let Some(other) = state.volumes.at(path).filter(|other| other != id) {
        return Err(Error::new(ErrorKind::InUse, format!("target {path} holds volume {other}, not volume {id}")));
    }
    let Some(volume) = state.volumes.get(id) else { return absent(state, id, Some(path)) };
    if volume.kind() != kind {
        return Err(wrong_kind(id, kind));
    }
    state.publish_directory(path)?.check_shape(path, kind)?;
    let noted = volume.published_at(path);
    let target = match Target::open(state, path) {
        Err(error) if error.kind == ErrorKind::NotFound => None,
        target => Some(target?),
    };
    let mut ours = noted.is_some();
    if let Some(target) = &target {
        while let Some(mount) = target.mount()? {
            if !is_of(&volume, &mount) && !noted.is_some_and(|published| mount.is(published, &volume, state)) {
                let message = format!("something other than volume {id} is mounted at target {path}; unmount it first");
                return Err(Error::new(ErrorKind::InUse, message));
            }
            target.unmount()?;
            ours = true;
        }
    }
    if noted.is_some_and(|published| !is_gone(state, path, published)) {
        return Err(moved(id, path));
    }
    state.volumes.remove_target(id, path);
    if let Some(target) = target
        && (ours || target.is_marked()?)
    {
        target.clear(None)?;
    }
    Ok(Reply::Done)
}

/// Whether a mount shows the volume's directory, or the node of its loop device.
fn is_of(volume: &Volume, mount: &Mounted) -> bool {
    let Mounted::Seen(mount) = mount else { return false };
    match volume.kind() {
        Kind::Directory => mount.id == volume.content,
        Kind::Block => {
            let number = volume.device.map(|device| (MAJOR, device.number));
            mount.file_type == FileType::BlockDevice && Some(mount.device) == number
        }
    }
}
