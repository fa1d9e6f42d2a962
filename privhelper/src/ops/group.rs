//! Snapshots of several volumes, all of one moment. What can fail or take long is done before it, so that writers wait for
//! nothing but the copying itself; and there are all of the snapshots, or none.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead_protocol::{CallId, Error, ErrorKind, Member, NameHash, Pace, Reply, VolumeId, VolumeSpec};

use super::copy::{Ready, is_snapshot, is_there, spec_of_snapshot, time_of_day};
use super::delete::{Deletable, delete};
use super::filesystem::{Mounted, mount};
use super::moment::at_one_moment;
use super::record_use;
use crate::bookkeeping::{Begun, unsynced};
use crate::log;
use crate::state::{Held, Kind, Limit, Record, State, Volume, busy, exists, failed, in_use, invalid};

/// How long all images together may take to be written out before anything is frozen.
const PATIENCE: Duration = Duration::from_secs(4);
/// In how many pieces all images together may be: writers wait for about a second then.
const MOST_EXTENTS: u64 = 40_000;

/// Takes a snapshot of each of several volumes of one pool, at one moment. If all already exist, nothing is done.
pub fn create_group(state: &State, members: &[Member], name_hash: NameHash, call: CallId) -> Result<Reply, Error> {
    check_ids(members)?;
    let ids = members.iter().map(|member| &member.volume).chain(members.iter().map(|member| &member.snapshot));
    let mut sources = state.hold_together(ids, Pace::Extents)?;
    let mut copies = sources.split_off(members.len());
    match found(&sources, &copies, name_hash)? {
        Found::Complete => {}
        Found::Nothing => {
            if let Err(error) = take(&mut sources, &mut copies, name_hash) {
                // What cannot be deleted now is when the request is repeated, or at a start.
                let _ = delete_all(copies, call);
                return Err(error);
            }
        }
        Found::Unfinished => {
            delete_all(copies, call)?;
            return Err(busy("what an earlier attempt has left of these snapshots is being deleted; try again"));
        }
    }
    complete(&mut copies).map(|()| Reply::Done)
}

/// Checks that each id is there once.
fn check_ids(members: &[Member]) -> Result<(), Error> {
    let mut ids = BTreeSet::new();
    let mut all = members.iter().flat_map(|member| [&member.volume, &member.snapshot]);
    match all.find(|id| !ids.insert(*id)) {
        Some(twice) => Err(invalid(format!("{twice} occurs twice: each snapshot is of a volume of its own"))),
        None if members.is_empty() => Err(invalid("there is no volume to be copied")),
        None => Ok(()),
    }
}

/// What there is of snapshots that were to be taken together.
enum Found {
    Nothing,
    /// Some are there, or all, and nobody was told.
    Unfinished,
    /// All are there, and one of them says so. Whoever has recorded that may not have come to the others.
    Complete,
}

/// Finds out what there is of these snapshots.
///
/// # Errors
/// `AlreadyExists` when something else has one of their ids, or one of a complete group is gone: another would be of another
/// moment. As for any request about a volume that is not served when one of them is not.
fn found(sources: &[Held<'_>], copies: &[Held<'_>], name_hash: NameHash) -> Result<Found, Error> {
    for (source, copy) in sources.iter().zip(copies) {
        let is_known = is_there(copy, source.id, |spec| is_snapshot(spec, name_hash))?;
        if !is_known && copy.state.unserved.contains_key(copy.id) {
            return Err(copy.state.unknown(copy.id));
        }
    }
    let known = || copies.iter().filter_map(|copy| Some((copy.id, copy.known()?)));
    let Some((_, first)) = known().next() else { return Ok(Found::Nothing) };
    let Some((id, _)) = known().find(|(_, copy)| !copy.is_unfinished()) else { return Ok(Found::Unfinished) };
    if known().filter(|(_, copy)| copy.is_along_with(first)).count() == copies.len() {
        return Ok(Found::Complete);
    }
    Err(exists(format!(
        "snapshot {id} was taken along with others, of which some are gone, or were not asked for: delete it, or choose another name"
    )))
}

/// Deletes those that are there.
fn delete_all(copies: Vec<Held<'_>>, call: CallId) -> Result<(), Error> {
    let mut deleted = Ok(());
    for copy in copies.into_iter().filter(|copy| copy.known().is_some()) {
        let id = copy.id;
        if let Err(error) = delete(copy, Deletable::Snapshot, call) {
            log::warning!("a snapshot is left that others were to be taken along with volume={id} error={error}");
            deleted = Err(error);
        }
    }
    deleted
}

/// Records that all of the snapshots are there, whose names are on disk. Once one of them says so, the others are never
/// deleted as unfinished.
fn complete(copies: &mut [Held<'_>]) -> Result<(), Error> {
    let is_unfinished = |copy: &Held<'_>| copy.known().is_some_and(Volume::is_unfinished);
    if !copies.iter().any(is_unfinished) {
        return Ok(());
    }
    let mut marked = Ok(());
    for copy in copies.iter_mut().filter(|copy| is_unfinished(copy)) {
        marked = marked.and(record_use(copy, false));
    }
    let Some((first, volume)) = copies.first().and_then(|first| Some((first, first.known()?))) else { return marked };
    // After a power cut, those of which nobody was told are deleted.
    let served = volume.pool.served()?;
    let synced = served.noting_failure(served.sync_all()).map_err(|error| unsynced(first.id, error));
    marked.and(synced)
}

/// A volume, its snapshot as it is to be, and its image.
struct Original<'a> {
    volume: &'a Volume,
    spec: VolumeSpec,
    ready: Ready,
}

/// Takes the snapshots, of which there are none. If that fails, some may be there, and are to be deleted.
fn take(sources: &mut [Held<'_>], copies: &mut [Held<'_>], name_hash: NameHash) -> Result<(), Error> {
    check(sources, name_hash)?;
    mount_again(sources)?;
    let (sources, mut originals) = (&*sources, Vec::new());
    let taken = prepare(sources, name_hash, &mut originals).and_then(|()| copy(sources, copies, &originals));
    taken.inspect_err(|_| originals.iter().for_each(|original| original.ready.give_up()))
}

/// Checks what can be told of all before anything is done to one.
fn check(sources: &[Held<'_>], name_hash: NameHash) -> Result<(), Error> {
    for source in sources {
        let (volume, _) = spec_of_snapshot(source, name_hash)?;
        check_unwritten(source, volume)?;
        if source.state.loops.is_silent(source.id) {
            return Err(out_of_reach(source.id));
        }
    }
    Ok(())
}

/// Has those filesystems mounted that have a device and are not mounted here: if a process has one from before, this finds the
/// same one.
fn mount_again(sources: &mut [Held<'_>]) -> Result<(), Error> {
    let limit = Limit::from_now(PATIENCE);
    for source in sources {
        let is_attached = |volume: &Volume| volume.kind() == Kind::Filesystem && volume.device.is_some();
        if !source.known().is_some_and(is_attached) {
            continue;
        }
        if limit.left().is_zero() {
            return Err(out_of_reach(source.id));
        }
        mount(source)?;
    }
    Ok(())
}

/// Finds out whether all can be copied, and makes them ready.
fn prepare<'a>(sources: &'a [Held<'_>], name_hash: NameHash, originals: &mut Vec<Original<'a>>) -> Result<(), Error> {
    let (copied, limit) = (time_of_day(), Limit::from_now(PATIENCE));
    for source in sources {
        let (volume, spec) = spec_of_snapshot(source, name_hash)?;
        if limit.left().is_zero() {
            return Err(busy(format!("too much has yet to be written to volume {} and others; try again", source.id)));
        }
        let mut ready = Ready::new(source, volume, copied)?;
        let measured = ready.measure(source.id);
        originals.push(Original { volume, spec, ready });
        measured?;
    }
    let extents = originals.iter().fold(0_u64, |sum, original| sum.saturating_add(original.ready.extents));
    if extents <= MOST_EXTENTS {
        return Ok(());
    }
    let message = format!(
        "the images are in {extents} pieces, and copying them would stop their writers for a second for each 40000; the limit for all together is {MOST_EXTENTS}: copy the content of the largest into a new volume, or take fewer together"
    );
    Err(Error::new(ErrorKind::TooFragmented { extents, limit: MOST_EXTENTS }, message))
}

/// Checks that nobody writes to a block volume: there is no telling what of that belongs together.
fn check_unwritten(source: &Held<'_>, volume: &Volume) -> Result<(), Error> {
    let is_written = |volume: &Volume| volume.device.is_some_and(|device| !device.read_only);
    if volume.kind() != Kind::Block || !is_written(volume) {
        return Ok(());
    }
    Err(in_use(format!(
        "block volume {} is published, and cannot be copied at one moment with others: unpublish it, or publish it read-only; or use a volume with a filesystem of its own (backing: image)",
        source.id
    )))
}

/// Copies all at one moment.
fn copy(sources: &[Held<'_>], copies: &mut [Held<'_>], originals: &[Original<'_>]) -> Result<(), Error> {
    let mut begun = Vec::new();
    let mut outcome = begin(copies, originals, &mut begun).and_then(|()| {
        let mounted = mounted(sources, originals)?;
        at_one_moment(&mounted, || {
            let mut each = begun.iter().zip(copies.iter()).zip(originals);
            each.try_for_each(|((begun, copy), original)| begun.share(copy.id, &original.ready.original))
        })
    });
    for (begun, copy) in begun.into_iter().zip(copies.iter_mut()) {
        match outcome {
            Ok(()) => outcome = begun.finish(copy),
            Err(_) => begun.give_up(copy),
        }
    }
    outcome?;
    // They are of one pool.
    let (Some(Original { volume, .. }), Some(copy)) = (originals.first(), copies.first()) else { return Ok(()) };
    volume.pool.served()?.sync_names().map_err(|error| unsynced(copy.id, error))
}

fn begin(copies: &mut [Held<'_>], originals: &[Original<'_>], begun: &mut Vec<Begun>) -> Result<(), Error> {
    for (copy, Original { volume, spec, ready }) in copies.iter_mut().zip(originals) {
        // Others of its moment may be missing.
        let record = Record { spec: *spec, unused: true };
        begun.push(Begun::new(copy, &volume.pool, record, &ready.original)?);
    }
    Ok(())
}

/// The filesystems of those volumes that are mounted.
///
/// # Errors
/// `Busy` when one has a device, and what is mounted on that is out of reach.
fn mounted<'a>(sources: &'a [Held<'_>], originals: &'a [Original<'_>]) -> Result<Vec<Mounted<'a>>, Error> {
    let mut all = Vec::new();
    for (source, Original { volume, ready, .. }) in sources.iter().zip(originals) {
        if volume.kind() != Kind::Filesystem || volume.device.is_none() {
            continue;
        }
        let mounted = Mounted::of(source.state, source.id, &volume.pool, volume, &ready.original.image);
        let mounted = mounted.map_err(|error| failed("inspect the filesystem of volume", source.id, error))?;
        all.push(mounted.ok_or_else(|| out_of_reach(source.id))?);
    }
    Ok(all)
}

/// Programs that were started before it was unmounted here, or before this helper was, may write to it.
fn out_of_reach(id: &VolumeId) -> Error {
    busy(format!("volume {id} has a device that does not answer, or not in time; try again"))
}
