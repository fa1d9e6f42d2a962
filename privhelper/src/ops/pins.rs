//! Whether a mount that the host had at start, and that is no target, still shows a volume.

use bulkhead_protocol::{Error, ErrorKind, RelativePath, TargetPath, VolumeId};

use crate::state::{PublishDirectory, State};
use crate::sys::{Errno, file};

/// Checks that no such mount shows the volume, that at the target `except` aside. One is forgotten where it is certainly
/// gone.
///
/// # Errors
/// `InUse` when there may be one.
pub fn check_unpinned(state: &State, id: &VolumeId, except: Option<&TargetPath>) -> Result<(), Error> {
    for pin in state.pins.of(id).iter().filter(|pin| except.is_none() || pin.target.as_ref() != except) {
        let point = pin.point.display();
        let gone = pin
            .target
            .as_ref()
            .map(|target| state.publish_directory(target).is_ok_and(|directory| is_gone(directory, &target.path)));
        let remedy = match gone {
            Some(true) => {
                state.pins.forget(id, pin);
                continue;
            }
            Some(false) => "unmount it there first",
            None => "unmount it there, then restart bulkhead-privhelper",
        };
        return Err(Error::new(ErrorKind::InUse, format!("volume {id} is mounted at {point}; {remedy}")));
    }
    Ok(())
}

/// Whether nothing is mounted at a path any more, for certain. A mount goes along when something on the way to it is
/// renamed, so that is certain only where nobody but root can rename anything.
fn is_gone(directory: &PublishDirectory, path: &RelativePath) -> bool {
    let status = directory.open_parent(path).map_err(|obstacle| obstacle.errno);
    match status.and_then(|parent| file::status_at(parent, path.split_last().1)) {
        Ok(status) => !status.mount_root,
        Err(errno) => errno == Errno::NOENT,
    }
}
