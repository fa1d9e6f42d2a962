//! Filesystems in images. Only a volume whose record says that it has one ever gets here: what a tenant could write as a
//! device is never mounted.

use std::os::fd::OwnedFd;
use std::time::Duration;

use bulkhead_protocol::{BlockSize, Bytes, DirectoryMode, Error, ErrorKind, Reply, VolumeId, VolumeKind, VolumeSpec};
use caps::Capability;
use rustix::fs::{Mode, OFlags};

use super::loops::{attach, attached, detach, record_numbers};
use super::use_first;
use crate::bookkeeping::{grow_image, template};
use crate::log;
use crate::state::layout::{self, DATA};
use crate::state::{
    Device, Held, Kind, Mounting, Served, State, Volume, broken, busy, failed, in_use, invalid, unsupported,
};
use crate::sys::capability::raise;
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult, file, xfs};

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
    let root = root(volume).map_err(|error| cannot_grow(id, error))?;
    let wanted = size.max(volume.record.spec.size);
    if let Some(root) = root.as_ref().filter(|_| !is_grown(&image, wanted)) {
        // One that its pod has frozen would keep a growth waiting.
        settle(&image, root).map_err(|error| cannot_grow(id, error))?;
    }
    let reply = grow_image(&mut held, Kind::Filesystem, size)?;
    let (volume, _) = held.existing(Kind::Filesystem)?;
    let grown = || -> SysResult<()> {
        let Some(device) = volume.device else { return Ok(()) };
        held.state.loops.refresh(device.number, volume.content)?;
        root.map_or(Ok(()), |root| grow(&image, &root, volume.record.spec.size))
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

/// The root of the filesystem of a volume, if it is mounted.
pub fn root(volume: &Volume) -> SysResult<Option<OwnedFd>> {
    let Ok(Served { mounting: Some(mounting), .. }) = &volume.pool.state else { return Ok(None) };
    volume.device.map(|device| mounting.root(device.number)).transpose().map(Option::flatten)
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
    let Ok(mut held) = state.hold(id) else { return false };
    let Some((volume, device)) = held.known().and_then(|volume| Some((volume, volume.device?))) else { return true };
    let is_left = !volume.published.is_empty() || volume.seen_elsewhere;
    let (pool, image) = (volume.pool.clone(), held.open_content(OFlags::RDONLY));
    let (Ok(Served { mounting: Some(mounting), .. }), Ok(image)) = (&pool.state, image) else { return true };
    let keep = || {
        let (is_kept, is_frozen) = (mounting.keeps(device.number)?, layout::is_noted_frozen(&image)?);
        if !is_frozen && (is_kept || !is_left) {
            return Ok(());
        }
        let mount = mounting.make(device.number)?;
        thaw_left(&image, &mount)?;
        if !is_left || is_kept {
            return Ok(());
        }
        mounting.keep(device.number, &mount)
    };
    let Err(error) = keep() else { return true };
    log::warning!("the filesystem of a volume is out of reach until it is published anew volume={id} error={error}");
    held.change(|volume| volume.unmountable = Some(error.errno));
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
        let mount = mounting.make(device.number)?;
        thaw_left(&image, &mount)?;
        // Whatever was interrupted in the filesystem's life before is made up for now. What needs nothing is not changed: a
        // pod may have left it frozen, and nobody can thaw it before it is published.
        if !is_published {
            grow_unless_frozen(held.id, &image, &mount, spec.size)?;
            prepare(&mount, Mode::from_raw_mode(mode.get().into()))?;
        }
        mounting.keep(device.number, &mount)
    };
    let failure = mounted().err();
    let errno = failure.as_ref().map(|error| error.errno);
    held.change(|volume| volume.unmountable = errno.filter(|errno| *errno != Errno::BUSY));
    let Some(error) = failure else { return Ok(device) };
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
            let thawed = thaw_left(&held.open_content(OFlags::RDONLY)?, &root);
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

/// Whatever the kernel says of an image, such volumes are supported here.
fn cannot_mount(id: &VolumeId, error: SysError) -> Error {
    let errno = error.errno;
    let error = failed("mount the filesystem of volume", id, error);
    let kind = if errno == Errno::BUSY { error.kind } else { ErrorKind::Io(errno.raw_os_error()) };
    Error { kind, ..error }
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

/// Makes a filesystem, given a descriptor of its root, as large as its image, in which it is then complete.
fn grow(image: &OwnedFd, root: &OwnedFd, size: Bytes) -> SysResult<()> {
    if is_grown(image, size) {
        return Ok(());
    }
    {
        let root = file::open(root, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        xfs::grow(&root, size.get())?;
    }
    settle(image, root)
}

/// Makes one as large as its image that is not published: whoever has left it frozen can thaw it only once it is.
fn grow_unless_frozen(id: &VolumeId, image: &OwnedFd, root: &OwnedFd, size: Bytes) -> SysResult<()> {
    if is_grown(image, size) {
        return Ok(());
    }
    match settle(image, root) {
        Err(SysError { errno: Errno::BUSY, .. }) => {
            log::warning!("a filesystem is not made as large as its image, since it was left frozen volume={id}");
            Ok(())
        }
        settled => settled.and_then(|()| grow(image, root, size)),
    }
}

/// Sees to it that a copy of an image, in which a filesystem of this size is mounted, can be mounted too: a growth may not
/// have been brought to it.
pub fn settle_growth(image: &OwnedFd, root: &OwnedFd, size: Bytes) -> SysResult<()> {
    if is_grown(image, size) {
        return Ok(());
    }
    match settle(image, root) {
        // Whoever has frozen it has brought everything to the image.
        Err(SysError { errno: Errno::BUSY, .. }) => Ok(()),
        settled => settled,
    }
}

/// Brings to its image all that the kernel has of a mounted filesystem, the superblock too: until then the image, or a copy of
/// it, cannot be mounted after a crash if the log tells of groups that the superblock does not have (seen on Linux 6.18).
///
/// # Errors
/// `BUSY` when it is frozen: its pod may leave it so for ever.
fn settle(image: &OwnedFd, root: &OwnedFd) -> SysResult<()> {
    thaw_left(image, root)?;
    let root = file::open(root, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
    // So that there is little left to do while it is frozen.
    rustix::fs::syncfs(&root).by("syncfs")?;
    layout::note_frozen(image, true)?;
    let frozen = {
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        xfs::freeze(&root)
    };
    match frozen {
        Ok(()) => thaw(image, &root),
        Err(error) => layout::note_frozen(image, false).and(Err(error)),
    }
}

/// Thaws a filesystem, given a descriptor of its root, if a helper that was killed, or that met an error, has left it frozen.
fn thaw_left(image: &OwnedFd, root: &OwnedFd) -> SysResult<()> {
    if !layout::is_noted_frozen(image)? {
        return Ok(());
    }
    thaw(image, &file::open(root, ".", OFlags::RDONLY | OFlags::DIRECTORY)?)
}

/// Thaws a filesystem. While that fails, whoever writes to it waits.
fn thaw(image: &OwnedFd, root: &OwnedFd) -> SysResult<()> {
    let thaw_once = || {
        let _raised = raise(Capability::CAP_SYS_ADMIN)?;
        xfs::thaw(root)
    };
    match thaw_once().or_else(|_| thaw_once()) {
        // It is not frozen.
        Ok(()) | Err(SysError { errno: Errno::INVAL, .. }) => layout::note_frozen(image, false),
        failed => failed,
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
