//! How much of an image is shared with others: what would stay if it were deleted.

use bulkhead_protocol::{Error, Pace, Reply, VolumeId};
use rustix::fs::OFlags;

use super::status::changed;
use crate::state::{Kind, State, broken, failed, invalid, layout, unsupported};
use crate::sys::{extents, file};

/// How many times one request asks the filesystem at most.
const STEPS: usize = 1024;

/// Returns how much a volume's or a snapshot's image occupies, and how much of that, from an offset on, others share.
pub fn sharing(state: &State, id: &VolumeId, from: u64) -> Result<Reply, Error> {
    let seen = state.see(id, Pace::Disk)?;
    let (kind, served) = (seen.volume.kind(), seen.volume.pool.served()?);
    if kind == Kind::Directory {
        return Err(unsupported(format!("volume {id} is a directory, which shares nothing with other volumes")));
    }
    let cannot = |error| failed("inspect the image of volume", id, error);
    let why = |error| changed(state, id, &seen.volume).unwrap_or(error);
    let opened = layout::open_content(&served.directory, id, kind, OFlags::RDONLY);
    let opened = opened.and_then(|image| Ok((file::status(&image)?, image)));
    let (found, image) = opened.map_err(|error| why(cannot(error)))?;
    if found.id != seen.volume.content {
        let message = format!("the image of volume {id} was replaced while it was served: put back what was there");
        return Err(why(broken(message)));
    }
    if from > found.size {
        return Err(invalid(format!("the image of volume {id} ends at {}, before offset {from}", found.size)));
    }
    let (shared, next) = extents::shared(&image, from, STEPS).map_err(cannot)?;
    Ok(Reply::Sharing { allocated: found.allocated, shared, next })
}
