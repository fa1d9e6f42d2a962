//! Filesystems in images. Only a volume whose record says that it has one ever gets here: what a tenant could write as a
//! device is never mounted.

use std::os::fd::OwnedFd;

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
use crate::sys::{Errno, Error as SysError, Result as SysResult, file, xfs};

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
    check_growth(held.id, &held.open_content(OFlags::RDONLY)?, volume.record.spec.size, size)?;
    // A filesystem that has shut down, or cannot be reached, says so before its image is grown.
    let device = if volume.published.is_empty() { None } else { Some(mount(&mut held)?) };
    let reply = grow_image(&mut held, Kind::Filesystem, size)?;
    let (volume, served) = held.existing(Kind::Filesystem)?;
    let grown = || -> SysResult<()> {
        let Some(device) = device.or(volume.device) else { return Ok(()) };
        held.state.loops.refresh(device.number, volume.content)?;
        let root = served.mounting.as_ref().map(|mounting| mounting.root(device.number)).transpose()?.flatten();
        root.map_or(Ok(()), |root| grow(&root, volume.record.spec.size))
    };
    grown().map_err(|error| failed("grow the filesystem of volume", held.id, error))?;
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

/// Mounts the filesystems that an earlier helper has left mounted once more: this finds the same ones.
pub fn take_over_filesystems(state: &State) {
    let is_left = |volume: &Volume| !volume.published.is_empty() || volume.seen_elsewhere;
    let left = state.volumes.page(None, usize::MAX, |id, volume| {
        (volume.kind() == Kind::Filesystem && is_left(volume)).then(|| id.clone())
    });
    for id in left {
        // A request that has it by now mounts it if need be.
        let Ok(mut held) = state.hold(&id) else { continue };
        let found = held.known().and_then(|volume| Some((volume.pool.clone(), volume.device?.number)));
        let Some((pool, number)) = found else { continue };
        let Ok(Served { mounting: Some(mounting), .. }) = &pool.state else { continue };
        let keep = || match mounting.keeps(number)? {
            true => Ok(()),
            false => mounting.make(number).and_then(|mount| mounting.keep(number, &mount)),
        };
        if let Err(error) = keep() {
            log::warning!(
                "the filesystem of a volume is out of reach until it is published anew volume={id} error={error}"
            );
            held.change(|volume| volume.unmountable = Some(error.errno));
        }
    }
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
    let size = template::size(&held.open_content(OFlags::RDONLY)?);
    let mounted = || -> SysResult<()> {
        // The image may have grown since.
        content.map_or(Ok(()), |image| held.state.loops.refresh(device.number, image))?;
        let mount = mounting.make(device.number)?;
        // Whatever was interrupted in the filesystem's life before is made up for now. What needs nothing is not changed: a
        // pod may have left it frozen, and nobody can thaw it before it is published.
        if !is_published {
            // What is too little for a group of its own (`XFS_MIN_AG_BLOCKS`, 64 blocks) stays unused for ever.
            if spec.size.get().saturating_sub(size?) >= 64 * 4096 {
                grow(&mount, spec.size)?;
            }
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
    match mounting.root(device.number).map_err(|error| cannot_mount(id, error))?.map(file::status) {
        Some(Ok(_)) => Ok(Some(device)),
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

/// Makes a filesystem, given a descriptor of its root, as large as its image.
fn grow(root: &OwnedFd, size: Bytes) -> SysResult<()> {
    let root = file::open(root, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let _raised = raise(Capability::CAP_SYS_ADMIN)?;
    xfs::grow(&root, size.get())
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
