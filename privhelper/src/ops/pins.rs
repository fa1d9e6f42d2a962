//! Whether a mount that the host had at start, and that is not a target, still shows a volume.

use bulkhead_protocol::{Error, ErrorKind, TargetPath, VolumeId};

use crate::state::State;

/// Checks that no such mount shows the volume, except one at the target `except`. Mounts that are certainly gone are
/// forgotten.
///
/// # Errors
/// `InUse` when there may be one.
pub fn check_unpinned(state: &State, id: &VolumeId, except: Option<&TargetPath>) -> Result<(), Error> {
    for pin in state.pins.of(id).iter().filter(|pin| except.is_none() || pin.target.as_ref() != except) {
        let point = pin.point.display();
        let gone = pin
            .target
            .as_ref()
            .map(|target| state.publish_directory(target).is_ok_and(|directory| directory.is_free(&target.path)));
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
