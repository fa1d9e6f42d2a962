//! Whether a volume is still mounted at a target. The start finds published volumes by the same means.

use std::path::Path;
use std::sync::Arc;

use bulkhead_protocol::{Condition, Error, ErrorKind, MountFlags, TargetPath, VolumeId};

use crate::log::shown;
use crate::place::wire::{Access, Found, Looked, Proof};
use crate::state::{
    Held, HeldTarget, Joined, Kind, Placer, PublishDirectory, Published, Served, State, Volume, busy, failed, in_use,
};
use crate::sys::file::FileId;
use crate::sys::loopdevice::{MAJOR, OURS};
use crate::sys::{Errno, failed_with, loopcontrol};

/// Checks that a volume is published nowhere, as far as this helper has published it or found it published.
///
/// # Errors
/// `InUse` when it is published.
pub fn check_unpublished(held: &mut Held<'_>) -> Result<(), Error> {
    match still_published(held, None) {
        Some(path) => Err(in_use(format!("volume {} is published at {path}; unpublish it first", held.id))),
        None => Ok(()),
    }
}

/// Checks that the host shows nothing at a target that looks like the data of a volume that is not known.
///
/// # Errors
/// `InUse` when it does.
pub fn check_unknown_unmounted(state: &State, id: &VolumeId) -> Result<(), Error> {
    let is_target = |point: &Path| state.publish_directories.iter().any(|directory| directory.has_target_at(point));
    let found = state.host.content_at(&state.pools_at(), id, is_target);
    let found = found.map_err(|error| failed("look at the host's mounts of volume", id, error))?;
    match found {
        None => Ok(()),
        Some(point) => Err(in_use(format!(
            "volume {id} is in no pool that is served, but mounted at {}; serve its pool, or unmount it there",
            shown(&point)
        ))),
    }
}

/// A target other than `except` at which the volume may still be mounted. Targets at which it certainly no longer is,
/// because somebody privileged has unmounted it, are forgotten.
pub fn still_published(held: &mut Held<'_>, except: Option<&TargetPath>) -> Option<Arc<TargetPath>> {
    let targets = held.known().map(|volume| volume.published.clone()).unwrap_or_default();
    for published in targets.into_iter().filter(|published| Some(&*published.target) != except) {
        if !is_gone(held.state, &published) {
            return Some(published.target);
        }
        held.change(|volume| volume.unpublish(&published.target));
    }
    None
}

/// Returns whether what was published at a target is certainly no longer mounted: see [`Proof`].
pub fn is_gone(state: &State, published: &Published) -> bool {
    match published.proof {
        Proof::Id(id) => state.placer.is_gone(id),
        Proof::Place(parent) => {
            let looked = state.placer.look(&published.target, None);
            looked.is_ok_and(|found| found.mount.is_none() && found.parent == parent)
        }
    }
}

/// The error for a target from which the volume was moved away while mounted.
pub fn moved(held: &Held<'_>, path: &TargetPath) -> Error {
    in_use(format!(
        "volume {} was published at {path} and may still be mounted: a directory on the way has been moved or replaced; move it back, or find the mount (findmnt) and unmount it",
        held.id
    ))
}

/// Returns whether what was found at a target is a volume's.
fn is_of(
    state: &State,
    at: &TargetPath,
    volume: &Volume,
    published: Option<&Published>,
    looked: &Looked,
) -> Result<bool, Error> {
    match looked.mount {
        None => Ok(false),
        Some(Found::Unreadable) => is_unreadable_of(state, at, volume, published),
        Some(Found::Seen(root, _)) => Ok(is_seen_of(volume, published, root, looked)),
    }
}

/// Returns whether a mount with this root is a volume's: its directory, the node or the filesystem of its loop device, or what
/// was published there.
fn is_seen_of(volume: &Volume, published: Option<&Published>, root: FileId, looked: &Looked) -> bool {
    let device = volume.device.map(|device| (MAJOR, device.number()));
    let own = match volume.kind() {
        Kind::Directory => root == volume.content,
        Kind::Block => looked.device.is_some() && looked.device == device,
        Kind::Filesystem => Some(root.device) == device,
        Kind::Snapshot => false,
    };
    own || published.is_some_and(|published| published.source == root)
}

/// Returns whether a mount at a target that cannot be inspected is a volume's. By the host's mount table it is on the volume's
/// device; or on that of its pool, which must have shut down, and the volume must have been published. It is not asked itself:
/// any other filesystem may be a tenant's own (fuse(4)), and never answer.
fn is_unreadable_of(
    state: &State,
    at: &TargetPath,
    volume: &Volume,
    published: Option<&Published>,
) -> Result<bool, Error> {
    let device = if volume.kind() == Kind::Filesystem {
        volume.device.map(|device| (MAJOR, device.number()))
    } else {
        let has_shut_down = volume.pool.served().ok().and_then(Served::failure) == Some(Condition::ShutDown);
        (has_shut_down && published.is_some()).then(|| volume.pool.filesystem())
    };
    let point = state.publish_directory(at)?.real_path.join(at.path.as_str());
    let found = state.host.device_at(&state.pools_at(), &point).map_err(|error| failed("inspect target", at, error))?;
    Ok(found.is_some() && found == device)
}

/// Returns whether what was found at the target of a block volume is a node that a helper has made, of a device that is bound to
/// nothing any more.
fn is_vacant(state: &State, volume: &Volume, looked: &Looked) -> bool {
    let number = looked.device.filter(|(major, _)| *major == MAJOR).map(|(_, number)| number);
    number.filter(|number| volume.kind() == Kind::Block && OURS.contains(number)).is_some_and(|number| {
        let binding = state.placer.open(number, Access::Look).and_then(loopcontrol::binding);
        failed_with(&binding, Errno::NXIO)
    })
}

/// Returns whether what is mounted at a target is a volume's: its content, or what was published there.
///
/// # Errors
/// When that cannot be found out.
pub fn shows(state: &State, at: &TargetPath, volume: &Volume, published: Option<&Published>) -> Result<bool, Error> {
    is_of(state, at, volume, published, &state.placer.look(at, None)?)
}

/// Returns what is published at a target of a volume, if the mount that can be seen shows it.
///
/// # Errors
/// When that cannot be found out.
pub fn find(
    placer: &Placer,
    (directory, at): (&PublishDirectory, &TargetPath),
    volume: &Volume,
    flags: MountFlags,
) -> Result<Option<Published>, Error> {
    let looked = placer.look(at, None)?;
    match looked.mount {
        Some(Found::Seen(source, proof)) if is_seen_of(volume, None, source, &looked) => {
            Ok(Some(published(directory, at, source, flags, proof)))
        }
        _ => Ok(None),
    }
}

/// What became of a target from which a volume was to be unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unbound {
    /// Nothing of it is left there.
    Done,
    /// There is something else.
    Other,
    /// The volume is not there, and may be mounted elsewhere.
    Moved,
    /// Nothing is done where the host would not see it.
    Apart,
}

/// Unmounts at a target what is a volume's, and removes the target, if that is joined to the host's.
///
/// # Errors
/// When that fails.
pub fn unbind(
    state: &State,
    at: &HeldTarget<'_>,
    joined: Option<&Joined<'_>>,
    volume: &Volume,
    published: Option<&Published>,
) -> Result<Unbound, Error> {
    let is_moved = || published.is_some_and(|published| !is_gone(state, published));
    for _ in 0..MOST_UNBOUND {
        let looked = match state.placer.look(at.path, None) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(unbound(is_moved())),
            looked => looked?,
        };
        if looked.mount.is_none() && is_moved() {
            return Ok(Unbound::Moved);
        }
        if looked.mount.is_some()
            && !is_of(state, at.path, volume, published, &looked)?
            && !is_vacant(state, volume, &looked)
        {
            // What the host shows there is not what is here, and says nothing of it.
            let is_hidden = joined.is_none() && matches!(looked.mount, Some(Found::Unreadable));
            return Ok(if is_hidden { Unbound::Apart } else { Unbound::Other });
        }
        match state.placer.unbind(at, joined, volume.kind(), looked.mount)? {
            None => return Ok(Unbound::Apart),
            Some(true) => return Ok(unbound(is_moved())),
            Some(false) => {}
        }
    }
    Err(busy(format!(
        "{MOST_UNBOUND} mounts were unmounted at target {}, and there are more; find out who mounts them (findmnt), and repeat the request",
        at.path
    )))
}

/// How many mounts at one target one request unmounts: root can mount a volume there any number of times.
const MOST_UNBOUND: usize = 256;

fn unbound(is_moved: bool) -> Unbound {
    if is_moved { Unbound::Moved } else { Unbound::Done }
}

/// What is known of a mount at a target in a publish directory that shows `source`.
pub fn published(
    directory: &PublishDirectory,
    at: &TargetPath,
    source: FileId,
    flags: MountFlags,
    proof: Proof,
) -> Published {
    // The configured directory's own name, so that its text is stored only once.
    let target = TargetPath { directory: directory.name.clone(), path: at.path.clone() };
    Published { target: Arc::new(target), source, flags, proof }
}
