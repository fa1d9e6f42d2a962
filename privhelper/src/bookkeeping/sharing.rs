//! How much of an image is shared with others: what would stay if it were deleted.

use bulkhead_protocol::{Error, Reply, VolumeId};
use rustix::fs::OFlags;

use crate::state::{Kind, State, failed, layout, unsupported};
use crate::sys::{Result as SysResult, extents, file};

/// How many times one request asks the filesystem at most.
const STEPS: usize = 1024;

/// How much a volume's or a snapshot's image occupies, and how much of that, from an offset on, others share.
pub fn sharing(state: &State, id: &VolumeId, from: u64) -> Result<Reply, Error> {
    let seen = state.see(id)?;
    let (kind, served) = (seen.volume.kind(), seen.volume.pool.served()?);
    if kind == Kind::Directory {
        return Err(unsupported(format!("volume {id} is a directory, which shares nothing with other volumes")));
    }
    let read = || -> SysResult<Reply> {
        let image = layout::open_content(&served.directory, id, kind, OFlags::RDONLY)?;
        let (shared, next) = extents::shared(&image, from, STEPS)?;
        Ok(Reply::Sharing { allocated: file::status(&image)?.allocated, shared, next })
    };
    read().map_err(|errno| failed("inspect the image of volume", id, errno))
}
