//! Filesystems in images. Only a volume whose record says that it has one ever gets here: what a tenant could write as a
//! device is never mounted.

use std::os::fd::OwnedFd;
use std::time::Duration;

use bulkhead_protocol::{
    BlockSize, Bytes, DirectoryMode, Error, ErrorKind, Pace, Reply, VolumeId, VolumeKind, VolumeSpec,
};
use rustix::fs::{Mode, OFlags};

use super::loops::{attach, attached, detach, record_numbers};
use super::use_first;
use crate::bookkeeping::{grow_image, template};
use crate::log;
use crate::mounter::Work;
use crate::state::layout::{self, DATA};
use crate::state::{
    Device, Held, Kind, Mounting, Pool, Served, State, Volume, broken, busy, failed, in_use, invalid, unsupported,
};
use crate::sys::{Errno, Error as SysError, Result as SysResult, file};

/// Mounts the filesystem in a volume's image.
pub fn mount_filesystem(mut held: Held<'_>) -> Result<Reply, Error> {
    mount(&mut held)?;
    Ok(Reply::Done)
}

/// Grows the image of a volume and, if it is mounted, the filesystem in it.
pub fn grow_filesystem(mut held: Held<'_>, size: Bytes) -> Result<Reply, Error> {
    let (volume, served) = held.existing(Kind::Filesystem)?;
    // Before anything is grown.
    mounting(&held, served)?;
    let image = held.open_content(OFlags::RDONLY)?;
    check_growth(held.id, &image, volume.record.spec.size, size)?;
    if !volume.published.is_empty() || volume.device.is_some() {
        // A filesystem that has shut down, or cannot be reached, says so before its image is grown. One that was let go while
        // it was frozen still is.
        mount(&mut held)?;
    }
    let (id, (volume, _)) = (held.id, held.existing(Kind::Filesystem)?);
    let (pool, wanted) = (volume.pool.clone(), size.max(volume.record.spec.size));
    let mounted = Mounted::of(&pool, volume, &image).map_err(|error| cannot_grow(id, error))?;
    if let Some(mounted) = mounted.as_ref().filter(|_| !is_grown(&image, wanted)) {
        // One that its pod has frozen would keep a growth waiting.
        mounted.settle().map_err(|error| cannot_grow(id, error))?;
    }
    let reply = grow_image(&mut held, Kind::Filesystem, size)?;
    let (volume, _) = held.existing(Kind::Filesystem)?;
    let grown = || -> SysResult<()> {
        let Some(device) = volume.device else { return Ok(()) };
        held.state.loops.refresh(device.number, volume.content)?;
        mounted.map_or(Ok(()), |mounted| mounted.grow(volume.record.spec.size))
    };
    grown().map_err(|error| cannot_grow(id, error))?;
    Ok(reply)
}

/// Checks that the filesystem in an image may be made that large.
pub fn check_growth(id: &VolumeId, image: &OwnedFd, from: Bytes, to: Bytes) -> Result<(), Error> {
    let most = template::most(image).map_err(|error| failed("read the superblock of volume", id, error))?;
    if to <= from || to.get() <= most {
        return Ok(());
    }
    if most == 0 {
        return Err(Error::new(
            ErrorKind::Io(Errno::UCLEAN.raw_os_error()),
            format!("volume {id} cannot grow: its image does not begin with a filesystem; it is damaged"),
        ));
    }
    Err(invalid(format!(
        "volume {id} was made too small to grow beyond {most} bytes, as each mount would take seconds; make a larger one, and copy its content"
    )))
}

/// Checks that the image of a volume is marked if a filesystem was made in it, before that is mounted, or copied into one
/// that is: the number of its inode, which was compared, may be that of another file by now.
pub fn check_mark(id: &VolumeId, volume: &Volume, image: &OwnedFd) -> Result<(), Error> {
    let is_marked = layout::is_filesystem(image).map_err(|error| failed("inspect the image of volume", id, error))?;
    if is_marked == Kind::has_filesystem(volume.record.spec.kind) {
        return Ok(());
    }
    Err(broken(format!(
        "the image of {} {id} was replaced by one of another kind; put back what was there",
        volume.kind()
    )))
}

/// Brings to the image of a volume all that the kernel has of the filesystem in it, so that a copy can be mounted: also a
/// growth that may not have been brought to it.
pub fn write_out(volume: &Volume, image: &OwnedFd) -> SysResult<()> {
    let Some(mounted) = Mounted::of(&volume.pool, volume, image)? else {
        // One that is published and was not taken over yet has more than its image says.
        let is_out_of_reach = volume.device.is_some() && !volume.published.is_empty();
        return if is_out_of_reach { Err(SysError::of(Errno::INPROGRESS)) } else { Ok(()) };
    };
    if !is_grown(image, volume.record.spec.size) {
        match mounted.settle() {
            // Whoever has frozen it has brought everything to the image.
            Ok(()) | Err(SysError { errno: Errno::BUSY, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    mounted.work(Work::Sync)
}

/// The directory of a volume that is published: that in its filesystem, which must be mounted.
pub fn directory(held: &Held<'_>) -> Result<OwnedFd, Error> {
    let (volume, served) = held.existing(Kind::Filesystem)?;
    let mounting = mounting(held, served)?;
    let open = || {
        let root = volume.device.map(|device| mounting.root(device.number)).transpose()?.flatten();
        root.map(|root| file::open(root, DATA, OFlags::PATH | OFlags::DIRECTORY)).transpose()
    };
    let opened = open().map_err(|error| failed("open the directory of volume", held.id, error))?;
    opened.ok_or_else(|| invalid(format!("the filesystem of volume {} is not mounted; mount it first", held.id)))
}

/// Unmounts the filesystem on the device of a volume that is published nowhere, if it is kept mounted.
pub fn let_go(held: &mut Held<'_>) -> Result<(), Error> {
    let Some(volume) = held.known().filter(|volume| volume.kind() == Kind::Filesystem) else { return Ok(()) };
    let (Some(device), Some(mounting)) = (volume.device, &volume.pool.served()?.mounting) else { return Ok(()) };
    mounting.release(device.number).map_err(|error| match error.errno {
        Errno::BUSY => busy(format!("the filesystem of volume {} is in use; try again", held.id)),
        _ => failed("unmount the filesystem of volume", held.id, error),
    })
}

/// How long to wait before trying again to thaw what an earlier helper has left frozen.
const RETRY_INTERVAL: Duration = Duration::from_secs(3);

/// Mounts the filesystems that an earlier helper has left mounted once more: this finds the same ones. Those that it has left
/// frozen are thawed, for as long as it takes after all were tried, and `tried` was called: whoever writes to one waits for
/// nothing else.
pub fn take_over_filesystems(state: &State, tried: impl FnOnce()) {
    let is_attached = |volume: &Volume| volume.kind() == Kind::Filesystem && volume.device.is_some();
    let mut left = state.volumes.page(None, usize::MAX, |id, volume| is_attached(volume).then(|| id.clone()));
    left.retain(|id| !is_taken_over(state, id));
    tried();
    while !left.is_empty() {
        std::thread::sleep(RETRY_INTERVAL);
        left.retain(|id| !is_taken_over(state, id));
    }
}

/// Takes over the filesystem of a volume if there is one to be taken over; `false` if it may be frozen still.
fn is_taken_over(state: &State, id: &VolumeId) -> bool {
    // Whoever has it may not know that it is frozen.
    let Ok(mut held) = state.hold(id, Pace::Content) else { return false };
    let Some((volume, device)) = held.known().and_then(|volume| Some((volume, volume.device?))) else { return true };
    let is_left = !volume.published.is_empty() || volume.seen_elsewhere;
    let (pool, image) = (volume.pool.clone(), held.open_content(OFlags::RDONLY));
    let (Ok(Served { mounting: Some(mounting), .. }), Ok(image)) = (&pool.state, image) else { return true };
    let keep = || {
        let (is_kept, is_frozen) = (mounting.keeps(device.number)?, layout::is_noted_frozen(&image)?);
        if !is_frozen && (is_kept || !is_left) {
            return Ok(());
        }
        let mounted = Mounted::make(mounting, device.number, &image)?;
        mounted.thaw_left()?;
        if !is_left || is_kept {
            return Ok(());
        }
        mounting.keep(device.number, &mounted.root)
    };
    let Err(error) = keep() else { return true };
    if error.errno == Errno::INPROGRESS {
        return false;
    }
    log::warning!("the filesystem of a volume is out of reach until it is published anew volume={id} error={error}");
    held.change(|volume| volume.unmountable = is_lasting(error.errno));
    !layout::is_noted_frozen(&image).unwrap_or(false)
}

/// Returns what mounts the filesystems of a pool.
fn mounting<'a>(held: &Held<'_>, served: &'a Served) -> Result<&'a Mounting, Error> {
    served
        .mounting
        .as_ref()
        .ok_or_else(|| unsupported(format!("volume {}: its pool is not configured for filesystems in images", held.id)))
}

/// Mounts the filesystem of a volume unless it is mounted, and returns the device that it is on.
fn mount(held: &mut Held<'_>) -> Result<Device, Error> {
    let (volume, _) = held.existing(Kind::Filesystem)?;
    check_mark(held.id, volume, &held.open_content(OFlags::RDONLY)?)?;
    let (pool, spec, is_published) = (volume.pool.clone(), volume.record.spec, !volume.published.is_empty());
    let VolumeKind::Filesystem { mode, .. } = spec.kind else { return Err(invalid("it has no filesystem")) };
    let mounting = mounting(held, pool.served()?)?;
    if let Some(device) = mounted_before(held, mounting, is_published)? {
        return Ok(device);
    }
    use_first(held, |held| mount_anew(held, mounting, spec, mode))
}

/// Mounts the filesystem of a volume, which is not mounted, at its present size and with the directory that is published.
fn mount_anew(
    held: &mut Held<'_>,
    mounting: &Mounting,
    spec: VolumeSpec,
    mode: DirectoryMode,
) -> Result<Device, Error> {
    let is_published = held.known().is_some_and(|volume| !volume.published.is_empty());
    let device = match held.known().and_then(|volume| volume.device) {
        Some(device) => device,
        None => attach(held, BlockSize::B4096, false)?,
    };
    let content = held.known().map(|volume| volume.content);
    let image = held.open_content(OFlags::RDONLY)?;
    let mounted = || -> SysResult<()> {
        // The image may have grown since.
        content.map_or(Ok(()), |image| held.state.loops.refresh(device.number, image))?;
        let mounted = Mounted::make(mounting, device.number, &image)?;
        mounted.thaw_left()?;
        // Whatever was interrupted in the filesystem's life before is made up for now. What needs nothing is not changed: a
        // pod may have left it frozen, and nobody can thaw it before it is published.
        if !is_published {
            mounted.grow_unless_frozen(held.id, spec.size)?;
            prepare(&mounted.root, Mode::from_raw_mode(mode.get().into()))?;
        }
        mounting.keep(device.number, &mounted.root)
    };
    let failure = mounted().err();
    let errno = failure.as_ref().and_then(|error| is_lasting(error.errno));
    held.change(|volume| volume.unmountable = errno);
    let Some(error) = failure else { return Ok(device) };
    if mounting.is_awaited(device.number) {
        return Err(busy(format!(
            "the filesystem of volume {} is being mounted: the kernel makes up for what was left unfinished in it; try again",
            held.id
        )));
    }
    if !is_published {
        // If this fails too, the device stays attached, which the next attempt finds.
        let _ = detach(held);
    }
    Err(cannot_mount(held.id, error))
}

/// Returns the device of a volume if what is mounted on it answers. Otherwise what is in the way of a new mount is gone,
/// unless the volume is published: then it must be unpublished first.
fn mounted_before(held: &mut Held<'_>, mounting: &Mounting, is_published: bool) -> Result<Option<Device>, Error> {
    let id = held.id;
    let Some(device) = attached(held)? else {
        if is_published {
            return Err(in_use(format!(
                "volume {id} is published on a device that is no longer bound to its image; unpublish it everywhere first"
            )));
        }
        return detach(held).map(|()| None);
    };
    record_numbers(held)?;
    let root = mounting.root(device.number).map_err(|error| cannot_mount(id, error))?;
    // What is open keeps it from being unmounted.
    match root.map(|root| file::status(&root).map(|_| root)) {
        Some(Ok(root)) => {
            let (number, image) = (device.number, held.open_content(OFlags::RDONLY)?);
            let thawed = Mounted { mounting, number, root, image: &image }.thaw_left();
            thawed.map(|()| Some(device)).map_err(|error| cannot_mount(id, error))
        }
        Some(Err(error)) if is_published => Err(Error::new(
            ErrorKind::Io(error.errno.raw_os_error()),
            format!(
                "the filesystem of volume {id} has shut down: {error}; unpublish the volume everywhere, and it is mounted anew; see the kernel's log"
            ),
        )),
        // A new mount is a new beginning.
        Some(Err(_)) => detach(held).map(|()| None),
        None => Ok(None),
    }
}

/// Returns the error of a mount that will not be over when it is tried again.
fn is_lasting(errno: Errno) -> Option<Errno> {
    Some(errno).filter(|errno| ![Errno::BUSY, Errno::INPROGRESS].contains(errno))
}

/// Whatever the kernel says of an image, such volumes are supported here.
fn cannot_mount(id: &VolumeId, error: SysError) -> Error {
    let lasting = is_lasting(error.errno);
    let error = failed("mount the filesystem of volume", id, error);
    Error { kind: lasting.map_or(error.kind, |errno| ErrorKind::Io(errno.raw_os_error())), ..error }
}

fn cannot_grow(id: &VolumeId, error: SysError) -> Error {
    match error.errno {
        Errno::BUSY => busy(format!(
            "volume {id} cannot grow while its filesystem is frozen; whoever froze it has to thaw it (fsfreeze --unfreeze)"
        )),
        _ => failed("grow the filesystem of volume", id, error),
    }
}

/// Returns whether the filesystem in an image takes so many bytes already, as its superblocks say in the image itself. What is
/// too little for a group of its own (`XFS_MIN_AG_BLOCKS`, 64 blocks) stays unused for ever.
fn is_grown(image: &OwnedFd, size: Bytes) -> bool {
    template::size(image).is_ok_and(|found| size.get().saturating_sub(found) < 64 * 4096)
}

/// A mounted filesystem: what works on it, its device, a descriptor of its root for path resolution, and its image.
struct Mounted<'a> {
    mounting: &'a Mounting,
    number: u32,
    root: OwnedFd,
    image: &'a OwnedFd,
}

impl<'a> Mounted<'a> {
    /// That of a volume in this pool, if it is mounted.
    fn of(pool: &'a Pool, volume: &Volume, image: &'a OwnedFd) -> SysResult<Option<Self>> {
        let (Ok(Served { mounting: Some(mounting), .. }), Some(device)) = (&pool.state, volume.device) else {
            return Ok(None);
        };
        let (number, root) = (device.number, mounting.root(device.number)?);
        Ok(root.map(|root| Self { mounting, number, root, image }))
    }

    /// That on a device, mounted anew.
    fn make(mounting: &'a Mounting, number: u32, image: &'a OwnedFd) -> SysResult<Self> {
        Ok(Self { mounting, number, root: mounting.make(number)?, image })
    }

    fn work(&self, work: Work) -> SysResult<()> {
        self.mounting.work(self.number, work, &self.root)
    }

    /// Makes it as large as its image, in which it is then complete.
    fn grow(&self, size: Bytes) -> SysResult<()> {
        if is_grown(self.image, size) {
            return Ok(());
        }
        self.work(Work::Grow(size.get()))?;
        self.settle()
    }

    /// Makes one as large as its image that is not published: whoever has left it frozen can thaw it only once it is.
    fn grow_unless_frozen(&self, id: &VolumeId, size: Bytes) -> SysResult<()> {
        if is_grown(self.image, size) {
            return Ok(());
        }
        match self.settle() {
            Err(SysError { errno: Errno::BUSY, .. }) => {
                log::warning!("a filesystem is not made as large as its image, since it was left frozen volume={id}");
                Ok(())
            }
            settled => settled.and_then(|()| self.grow(size)),
        }
    }

    /// Brings to its image all that the kernel has of it, the superblock too: until then the image, or a copy of it, cannot be
    /// mounted after a crash if the log tells of groups that the superblock does not have (seen on Linux 6.18).
    ///
    /// # Errors
    /// `BUSY` when it is frozen: its pod may leave it so for ever.
    fn settle(&self) -> SysResult<()> {
        self.thaw_left()?;
        layout::note_frozen(self.image, true)?;
        match self.work(Work::Settle) {
            // It may be frozen for a moment still, or for ever.
            Err(SysError { errno: Errno::INPROGRESS, .. }) => Err(SysError::of(Errno::INPROGRESS)),
            settled => layout::note_frozen(self.image, false).and(settled),
        }
    }

    /// Thaws it if a helper that was killed, or that met an error, has left it frozen. While that fails, whoever writes to it
    /// waits.
    fn thaw_left(&self) -> SysResult<()> {
        if !layout::is_noted_frozen(self.image)? {
            return Ok(());
        }
        let thawed = match self.mounting.finish(self.number) {
            // It has thawed what it froze, or has frozen nothing: by now its pod may have.
            Some((Work::Settle, Ok(_))) => Ok(()),
            Some((Work::Settle, Err(error))) if error.errno != Errno::INPROGRESS => Ok(()),
            _ => self.work(Work::Thaw),
        };
        match thawed {
            // It is not frozen.
            Ok(()) | Err(SysError { errno: Errno::INVAL, .. }) => layout::note_frozen(self.image, false),
            failed => failed,
        }
    }
}

/// Makes the directory that is published in a filesystem, unless it is there.
fn prepare(root: &OwnedFd, mode: Mode) -> SysResult<()> {
    match file::open(root, DATA, OFlags::PATH | OFlags::DIRECTORY) {
        Err(SysError { errno: Errno::NOENT, .. }) => {
            file::make_directory(root, DATA, mode)?;
            file::sync(file::open(root, ".", OFlags::RDONLY | OFlags::DIRECTORY)?)
        }
        opened => opened.map(drop),
    }
}
