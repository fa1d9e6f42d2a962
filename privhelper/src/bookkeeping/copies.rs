//! Volumes that begin as copies: files that share their blocks until one of them is written to. A copy is made in three steps,
//! and only the second, which takes the blocks over, is about a moment: all others that may wait for the disk come before it, or
//! after it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use bulkhead_protocol::{Error, Origin, VolumeId, VolumeKind, VolumeSpec};
use rustix::fs::Mode;

use super::allocate::fill_holes;
use super::create::{begin, cannot, check_room, discard, give_name, measure, promise, unsynced};
use super::room::Share;
use crate::state::layout::{self, IMAGE};
use crate::state::{Held, Kind, Pool, Record, Served, Volume};
use crate::sys::file::{self, FileId, Status};
use crate::sys::quota::ProjectId;
use crate::sys::{Called, Result as SysResult};

/// What a volume begins as a copy of.
#[derive(Debug)]
pub struct Original {
    /// The image, open for reading.
    pub image: OwnedFd,
    /// How many bytes a snapshot of it would refer to, if nothing is written to it meanwhile.
    pub written: u64,
    /// What is recorded of it.
    pub origin: Arc<Origin>,
}

/// A copy that has a place, and no content yet. It is [finished](Self::finish) or [given up](Self::give_up).
#[derive(Debug)]
pub struct Begun {
    pool: Arc<Pool>,
    record: Record,
    project: Option<ProjectId>,
    origin: Arc<Origin>,
    image: OwnedFd,
}

/// Makes a volume that does not exist, as a copy.
///
/// # Errors
/// `NoRoom` or `NoSpace` when there is no room for it.
pub fn make_copy(held: &mut Held<'_>, pool: &Arc<Pool>, spec: VolumeSpec, original: &Original) -> Result<(), Error> {
    // It holds data from the beginning, and may be the last to hold it.
    let copy = Begun::new(held, pool, Record { spec, unused: false }, original)?;
    if let Err(error) = copy.share(held.id, original) {
        copy.give_up(held);
        return Err(error);
    }
    copy.finish(held)?;
    // If this fails, the volume exists for all to see, but only a repeated request may report success.
    pool.served()?.sync_names().map_err(|error| unsynced(held.id, error))
}

impl Begun {
    /// Begins a copy under a name of its own that is no volume's.
    ///
    /// # Errors
    /// As [`make_copy`].
    pub fn new(held: &mut Held<'_>, pool: &Arc<Pool>, record: Record, original: &Original) -> Result<Self, Error> {
        let served = pool.served()?;
        let project = promise(held, pool, &record.spec, original.written)?;
        // From here on the project and the room stay taken, even if the build fails, until the volume has been emptied.
        let image = make_image(served, held.id, &record, project, &original.origin);
        let image = image.inspect_err(|_| discard(held, pool, served))?;
        Ok(Self { pool: Arc::clone(pool), record, project, origin: Arc::clone(&original.origin), image })
    }

    /// Takes over the blocks of the original: this is the moment of which it is a copy.
    pub fn share(&self, id: &VolumeId, original: &Original) -> Result<(), Error> {
        rustix::fs::ioctl_ficlone(&self.image, &original.image).by("FICLONE").map_err(cannot(id, "copy the image"))
    }

    /// Gives it its length and, once it is on disk, its name, if there is room for all that it refers to. The name has yet to
    /// be synced.
    ///
    /// # Errors
    /// As [`make_copy`]. Nothing is left of it then.
    pub fn finish(self, held: &mut Held<'_>) -> Result<(), Error> {
        let Self { pool, record, project, origin, image } = self;
        let served = pool.served()?;
        let build = || -> Result<(FileId, u64), Error> {
            let complete = complete(&image, &record).map_err(cannot(held.id, "copy the image"))?;
            let is_snapshot = Kind::from(record.spec.kind) == Kind::Snapshot;
            let allocated = if is_snapshot { complete.allocated } else { 0 };
            if is_snapshot {
                // Its source may have been written to since it was measured.
                let (measured, share) =
                    (measure(held.state, &pool)?, Share::of(&record.spec, pool.inode_size(), None, allocated));
                held.promise_instead(share.bytes, |promised| check_room(&pool, &measured, promised, share))?;
            }
            give_name(served, held.id).map(|()| (complete.id, allocated))
        };
        let built = build();
        let (content, allocated) = built.inspect_err(|_| discard(held, &pool, served))?;
        let volume = Volume::new(Arc::clone(&pool), project, record, content);
        held.add(Volume { origin: Some(origin), allocated, ..volume });
        Ok(())
    }

    /// Leaves nothing of it.
    pub fn give_up(self, held: &mut Held<'_>) {
        if let Ok(served) = self.pool.served() {
            discard(held, &self.pool, served);
        }
    }
}

/// Makes the place of a copy, and returns its image, which is empty.
fn make_image(
    served: &Served,
    id: &VolumeId,
    record: &Record,
    project: Option<ProjectId>,
    origin: &Origin,
) -> Result<OwnedFd, Error> {
    let (name, outer) = (layout::creating_name(id), begin(served, id, record, project)?);
    layout::write_origin(&served.attributes, &name, origin).map_err(cannot(id, "write what it is a copy of"))?;
    let make = || -> SysResult<OwnedFd> {
        let image = file::create(&outer, IMAGE, Mode::RUSR | Mode::WUSR)?;
        if Kind::has_filesystem(record.spec.kind) {
            layout::mark_filesystem(&served.attributes, &name)?;
        }
        Ok(image)
    };
    make().map_err(cannot(id, "copy the image"))
}

/// Gives a copy its length, and brings it to disk before it gets its name. What was allocated in the original and never written is a
/// hole here, which is filled unless the volume is sparse.
fn complete(image: &OwnedFd, record: &Record) -> SysResult<Status> {
    let size = record.spec.size.get();
    rustix::fs::ftruncate(image, size).by("ftruncate")?;
    if let VolumeKind::Image { sparse: false, .. } | VolumeKind::Filesystem { sparse: false, .. } = record.spec.kind {
        fill_holes(image, 0, size, |_| Ok(Some(())))?;
    }
    file::sync(image)?;
    file::status(image)
}
