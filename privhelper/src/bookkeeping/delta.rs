//! What differs between two snapshots, or holds data in one. While both exist, none of their blocks is used for anything else:
//! where both have the same block, they have the same content.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bulkhead_protocol::{Error, MAX_RANGES, Range, Reply, UpTo, VolumeId};

use crate::ops::open_snapshot;
use crate::state::{State, failed, invalid};
use crate::sys::extents::{self, Extent, Page};
use crate::sys::{Result as SysResult, file};

/// How many steps one request takes at most, whatever it finds.
const STEPS: usize = 4096;

/// The ranges of a snapshot from an offset on that may differ from `base`, or that hold data if there is no base.
pub fn delta(state: &State, id: &VolumeId, base: Option<&VolumeId>, from: u64) -> Result<Reply, Error> {
    let (seen, snapshot) = open_snapshot(state, id)?;
    let base = base.map(|base| open_snapshot(state, base)).transpose()?;
    if let Some((other, _)) = &base
        && !Arc::ptr_eq(&other.volume.pool, &seen.volume.pool)
    {
        return Err(invalid(format!("snapshot {id} cannot be compared with one in another pool")));
    }
    let cannot = |error| failed("compare snapshot", id, error);
    let size = file::status(&snapshot).map_err(cannot)?.size;
    if from > size {
        return Err(invalid(format!("snapshot {id} ends at {size}, before offset {from}")));
    }
    let read = |file: &OwnedFd, at: u64| extents::page(file, at);
    let mut new = Extents::new(|at| read(&snapshot, at));
    let mut old = Extents::new(|at| base.as_ref().map_or_else(|| Ok(Page::default()), |(_, base)| read(base, at)));
    let (ranges, next) = compare(&mut new, &mut old, from, size).map_err(cannot)?;
    let ranges = UpTo::try_from(ranges).map_err(|error| invalid(error.to_string()))?;
    Ok(Reply::Ranges { ranges, next })
}

/// The extents of a file, read as they are needed, in ascending order.
struct Extents<F> {
    read: F,
    page: Page,
    begun: bool,
}

impl<F: FnMut(u64) -> SysResult<Page>> Extents<F> {
    fn new(read: F) -> Self {
        Self { read, page: Page::default(), begun: false }
    }

    /// The place of what is at an offset, if there is data, and where this ends to be so. Offsets only grow from call to call.
    fn at(&mut self, at: u64) -> SysResult<(Option<u64>, u64)> {
        loop {
            let covers = |extent: &&Extent| extent.offset.saturating_add(extent.length) > at;
            match (self.page.extents.iter().find(covers), self.page.next) {
                (Some(extent), _) if extent.offset <= at => {
                    let place = extent.place.saturating_add(at.saturating_sub(extent.offset));
                    return Ok((Some(place), extent.offset.saturating_add(extent.length)));
                }
                (Some(extent), _) => return Ok((None, extent.offset)),
                (None, None) if self.begun => return Ok((None, u64::MAX)),
                (None, Some(next)) if next > at => return Ok((None, next)),
                _ => (self.page, self.begun) = ((self.read)(at)?, true),
            }
        }
    }
}

/// The ranges from `at` to `size` in which one has data and the other has none or other data, as many as fit a reply; and
/// where to continue.
fn compare(
    new: &mut Extents<impl FnMut(u64) -> SysResult<Page>>,
    old: &mut Extents<impl FnMut(u64) -> SysResult<Page>>,
    mut at: u64,
    size: u64,
) -> SysResult<(Vec<Range>, Option<u64>)> {
    let mut ranges: Vec<Range> = Vec::new();
    for _ in 0..STEPS {
        if at >= size {
            return Ok((ranges, None));
        }
        let ((there, new_end), (was, old_end)) = (new.at(at)?, old.at(at)?);
        let end = new_end.min(old_end).min(size);
        let length = end.saturating_sub(at);
        let is_full = ranges.len() == MAX_RANGES;
        match ranges.last_mut().filter(|last| last.offset.saturating_add(last.length) == at) {
            _ if there == was => {}
            Some(last) => last.length = last.length.saturating_add(length),
            None if is_full => return Ok((ranges, Some(at))),
            None => ranges.push(Range { offset: at, length }),
        }
        at = end;
    }
    Ok((ranges, Some(at)))
}

#[cfg(test)]
mod tests;
