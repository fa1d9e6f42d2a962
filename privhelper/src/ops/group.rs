//! Snapshots of several volumes, all of one moment. What can fail or take long is done before it, so that writers wait for
//! nothing but the copying itself; and there are all of the snapshots, or none.

use std::collections::BTreeSet;
use std::time::Duration;

use bulkhead_protocol::{CallId, Error, ErrorKind, Member, NameHash, Pace, Reply, VolumeSpec};

use super::copy::{Ready, is_snapshot, is_there, spec_of_snapshot, time_of_day};
use super::delete::{Deletable, delete};
use super::filesystem::Mounted;
use super::moment::{Limit, at_one_moment};
use super::record_use;
use crate::bookkeeping::{Begun, unsynced};
use crate::state::{Held, Kind, Record, State, Volume, busy, exists, failed, in_use, invalid};

/// How long all images together may take to be written out before anything is frozen.
const PATIENCE: Duration = Duration::from_secs(4);
/// In how many pieces all images together may be: writers wait for about a second then.
const MOST_EXTENTS: u64 = 40_000;

/// Takes a snapshot of each of several volumes, at one moment. If all already exist, nothing is done, whatever has become of
/// the volumes.
pub fn create_group(state: &State, members: &[Member], name_hash: NameHash, call: CallId) -> Result<Reply, Error> {
    check_ids(members)?;
    let sources = state.hold_all(members.iter().map(|member| &member.volume), Pace::Extents)?;
    let mut copies = state.hold_all(members.iter().map(|member| &member.snapshot), Pace::Prompt)?;
    if !are_there(&sources, &copies, name_hash)? {
        copies = copies.into_iter().map(|copy| without_leftover(copy, call)).collect::<Result<_, _>>()?;
        if let Err(error) = take(&sources, &mut copies, name_hash) {
            for copy in copies.into_iter().filter(|copy| copy.known().is_some()) {
                // If this fails, it is left over until the request is repeated.
                let _ = delete(copy, Deletable::Snapshot, call);
            }
            return Err(error);
        }
    }
    // If this is lost in a power cut, all of them are there for a repeated request nevertheless.
    copies.iter_mut().try_for_each(|copy| record_use(copy, false)).map(|()| Reply::Done)
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

/// Returns whether all snapshots are there, and of one moment.
///
/// # Errors
/// `AlreadyExists` when something else has one of their ids, or somebody has deleted one: what is left over from a request that
/// a crash has interrupted was never said to be complete.
fn are_there(sources: &[Held<'_>], copies: &[Held<'_>], name_hash: NameHash) -> Result<bool, Error> {
    let mut times = Vec::new();
    for (source, copy) in sources.iter().zip(copies) {
        if is_there(copy, source.id, |spec| is_snapshot(spec, name_hash))? {
            times.extend(copy.known().and_then(|volume| volume.origin.as_ref()).map(|origin| origin.copied));
        }
    }
    times.dedup();
    let is_known = |copy: &&Held<'_>| copy.known().is_some();
    if times.len() == 1 && copies.iter().all(|copy| copy.known().is_some()) {
        return Ok(true);
    }
    let is_complete = |copy: &&Held<'_>| copy.known().is_some_and(|volume| !volume.record.unused);
    match copies.iter().filter(is_known).find(is_complete) {
        Some(copy) => Err(exists(format!(
            "snapshot {} was taken along with others, of which some are gone, or were not asked for: delete it, or choose another name",
            copy.id
        ))),
        None => Ok(false),
    }
}

/// Deletes a snapshot that was left over, if there is one.
fn without_leftover<'a>(copy: Held<'a>, call: CallId) -> Result<Held<'a>, Error> {
    if copy.known().is_none() {
        return Ok(copy);
    }
    let (state, id) = (copy.state, copy.id);
    delete(copy, Deletable::Snapshot, call)?;
    state.hold(id, Pace::Prompt)
}

/// A volume, its snapshot as it is to be, and its image.
struct Original<'a> {
    volume: &'a Volume,
    spec: VolumeSpec,
    ready: Ready,
}

/// Takes the snapshots, of which there are none. If that fails, some may be there, and are to be deleted.
fn take(sources: &[Held<'_>], copies: &mut [Held<'_>], name_hash: NameHash) -> Result<(), Error> {
    let mut originals = Vec::new();
    let taken = prepare(sources, name_hash, &mut originals).and_then(|()| copy(sources, copies, &originals));
    taken.inspect_err(|_| originals.iter().for_each(|original| original.ready.give_up()))
}

/// Finds out whether all can be copied, and makes them ready.
fn prepare<'a>(sources: &'a [Held<'_>], name_hash: NameHash, originals: &mut Vec<Original<'a>>) -> Result<(), Error> {
    let found: Vec<_> = sources.iter().map(|source| spec_of_snapshot(source, name_hash)).collect::<Result<_, _>>()?;
    for (source, (volume, _)) in sources.iter().zip(&found) {
        check_unwritten(source, volume)?;
    }
    let (copied, limit) = (time_of_day(), Limit::from_now(PATIENCE));
    for (source, (volume, spec)) in sources.iter().zip(found) {
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
    let mut synced = BTreeSet::new();
    for (Original { volume, .. }, copy) in originals.iter().zip(copies.iter()) {
        if synced.insert(&volume.pool.config.name) {
            volume.pool.served()?.sync_names().map_err(|error| unsynced(copy.id, error))?;
        }
    }
    Ok(())
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
fn mounted<'a>(sources: &'a [Held<'_>], originals: &'a [Original<'_>]) -> Result<Vec<Mounted<'a>>, Error> {
    let mut all = Vec::new();
    for (source, Original { volume, ready, .. }) in sources.iter().zip(originals) {
        if volume.kind() == Kind::Filesystem {
            let mounted = Mounted::of(source.state, source.id, &volume.pool, volume, &ready.original.image);
            all.extend(mounted.map_err(|error| failed("inspect the filesystem of volume", source.id, error))?);
        }
    }
    Ok(all)
}
