//! Whether a volume is still mounted at a target. The start finds published volumes by the same means.

use std::path::Path;
use std::sync::Arc;

use bulkhead_protocol::{Condition, Error, MountFlags, TargetPath, VolumeId};

use crate::log::shown;
use crate::place::wire::{Found, Proof, Shown, Unbound, Unreadable};
use crate::state::{
    Held, HeldTarget, Joined, Kind, Placer, PublishDirectory, Published, Served, State, Volume, failed, in_use,
};
use crate::sys::file::FileId;
use crate::sys::loopdevice::MAJOR;

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
            let looked = state.placer.look(&published.target, None, None);
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

/// By what a mount is known to be a volume's.
fn shown_by(volume: &Volume, published: Option<&Published>, unreadable: Option<Unreadable>) -> Shown {
    Shown { content: volume.content(), published: published.map(|published| published.source), unreadable }
}

/// What is known of a mount at a target that cannot be inspected, if it is to be one of a volume. A filesystem of the volume's
/// own is not asked itself: the host's mount table says on which device it is.
fn unreadable(state: &State, at: &TargetPath, volume: &Volume) -> Result<Unreadable, Error> {
    if volume.kind() == Kind::Filesystem {
        let point = state.publish_directory(at)?.real_path.join(at.path.as_str());
        let found =
            state.host.device_at(&state.pools_at(), &point).map_err(|error| failed("inspect target", at, error))?;
        let device = volume.device.map(|device| (MAJOR, device.number()));
        return Ok(Unreadable::IsOnDevice(found.is_some() && found == device));
    }
    let has_shut_down = volume.pool.served().ok().and_then(Served::failure) == Some(Condition::ShutDown);
    Ok(if has_shut_down { Unreadable::PoolShutDown } else { Unreadable::Unknown })
}

/// Returns whether what is mounted at a target is a volume's: its content, or what was published there.
///
/// # Errors
/// When that cannot be found out.
pub fn shows(state: &State, at: &TargetPath, volume: &Volume, published: Option<&Published>) -> Result<bool, Error> {
    let look = |unreadable| state.placer.look(at, Some(shown_by(volume, published, unreadable)), None);
    let mut found = look(None)?.mount;
    if let Some(Found::Unreadable(None)) = found {
        found = look(Some(unreadable(state, at, volume)?))?.mount;
    }
    Ok(matches!(found, Some(Found::Seen(.., true) | Found::Unreadable(Some(true)))))
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
    match placer.look(at, Some(shown_by(volume, None, None)), None)?.mount {
        Some(Found::Seen(source, proof, true)) => Ok(Some(published(directory, at, source, flags, proof))),
        _ => Ok(None),
    }
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
    let proof = published.map(|published| published.proof);
    let unbind = |unreadable| state.placer.unbind(at, joined, shown_by(volume, published, unreadable), proof);
    match unbind(None)? {
        Unbound::Unreadable => unbind(Some(unreadable(state, at.path, volume)?)),
        unbound => Ok(unbound),
    }
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
