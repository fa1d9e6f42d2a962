//! Allocating what images lack. How many holes a sparse one has is up to its pod, so this is done in parts: no request takes
//! long, and none takes what the pool keeps in reserve.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bulkhead_protocol::{Error, ErrorKind, Reply, VolumeKind, VolumeSpec};
use rustix::fs::{FallocateFlags, OFlags};

use super::create::{check_room, measure};
use super::grow::grow;
use super::room::{Measured, Share};
use crate::state::{Held, broken, busy, failed, lock_in_time, no_space};
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file, walk};

/// How long one request goes on, give or take a step.
const PART: Duration = Duration::from_secs(2);
/// How many bytes one step allocates at most.
const STEP: u64 = 16 << 20;

/// Allocates what a sparse image lacks. From then on it is one that was allocated when it was made. What was allocated stays,
/// even if not all of it can be; the next request continues there.
pub fn allocate(mut held: Held<'_>) -> Result<Reply, Error> {
    let (id, volume) = (held.id, held.known().ok_or_else(|| held.state.unknown(held.id))?);
    let (old, pool, from) = (volume.record.spec, volume.pool.clone(), volume.filled);
    let kind = match old.kind {
        VolumeKind::Image { block_size, .. } => VolumeKind::Image { sparse: false, block_size },
        VolumeKind::Filesystem { mode, .. } => VolumeKind::Filesystem { sparse: false, mode },
        VolumeKind::Directory { .. } | VolumeKind::Snapshot { .. } => {
            let message = format!("allocate volume {id}: a {} is never allocated", volume.kind());
            return Err(Error::new(ErrorKind::WrongKind, message));
        }
    };
    if kind == old.kind {
        return Ok(Reply::Size(old.size));
    }
    let (image, served, size) = (held.open_content(OFlags::RDWR)?, pool.served()?, old.size.get());
    let inspect = || file::status(&image).map_err(|error| failed("inspect the image of volume", id, error));
    let found = inspect()?;
    if found.size != size {
        return Err(broken(format!(
            "allocate volume {id}: its image has {} bytes instead of {size}; put back the image that it had, or delete the volume",
            found.size
        )));
    }
    // It is promised already, but what the others do not use yet may be used up.
    let lacking = Share { bytes: size.saturating_sub(found.allocated), preallocated: true, project: None };
    let measured = Measured { notes: 0, ..measure(held.state, &pool)? };
    check_room(&pool, &measured, 0, lacking)?;
    let begun = Instant::now();
    let filled = fill_holes(&image, from, size, |step| {
        // Nobody else takes the same room meanwhile.
        let turn = lock_in_time(&served.filesystem.allocating)?;
        let space = served.filesystem.space()?;
        let is_free = space.free >= pool.config.reserve.of(space.total).saturating_add(step);
        if is_free { Ok(Some(turn).filter(|_| begun.elapsed() < PART)) } else { Err(SysError::of(Errno::NOSPC)) }
    });
    let filled = filled.map_err(|error| match error.errno {
        Errno::NOSPC => no_space(format!(
            "allocate volume {id}: the rest of pool {} is used up or kept in reserve; delete volumes or enlarge the pool",
            pool.config.name
        )),
        _ => failed("allocate the image of volume", id, error),
    })?;
    // Its pod may have given back what earlier requests had allocated: then it begins anew. What the filesystem itself takes
    // for the image counts as well, so that a few blocks may be missing, as they may in any image later.
    let is_whole = filled >= size && (from == 0 || inspect()?.allocated >= size);
    held.change(|volume| volume.filled = if filled < size { filled } else { 0 });
    if !is_whole {
        return Err(busy(format!("allocate volume {id}: {filled} of {size} bytes are done; ask again for the rest")));
    }
    grow(&mut held, VolumeSpec { kind, ..old }, "allocate the image of volume", |_, _, _| Ok(()))
}

/// Gives the holes of a file from an offset on blocks that read as zeros, a step at a time, for as long as `may_take` agrees to
/// so many bytes, with what it wants held meanwhile; returns where the first hole is left, or else `size`. Not the whole file at
/// once: that would take as much room again as there is in it.
pub fn fill_holes<T>(
    image: &OwnedFd,
    mut from: u64,
    size: u64,
    mut may_take: impl FnMut(u64) -> SysResult<Option<T>>,
) -> SysResult<u64> {
    while let Some((hole, end)) = walk::next_hole(image, from, size)? {
        let step = end.saturating_sub(hole).min(STEP);
        let Some(_held) = may_take(step)? else { return Ok(hole) };
        rustix::fs::fallocate(image, FallocateFlags::empty(), hole, step).by("fallocate")?;
        from = hole.saturating_add(step);
    }
    Ok(size)
}
