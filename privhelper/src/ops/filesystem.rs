//! Filesystems in images. Only a volume whose record says that it has one ever gets here: what a tenant could write as a
//! device is never mounted.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bulkhead_protocol::{BlockSize, Bytes, Error, ErrorKind, Pace, Reply, SecurityContext, VolumeId, VolumeKind};
use rustix::fs::OFlags;

use super::label::{is_of_label, label_refused, set_label};
use super::loops::{attach, attached, detach, lend};
use super::use_first;
use crate::bookkeeping::{grow_image, template};
use crate::log;
use crate::mounter::Work;
use crate::place::wire::{Figures, OnFilesystem};
use crate::state::layout;
use crate::state::{
    Attributes, Device, Held, Hold, Kind, Limit, PATIENCE, Pool, State, Volume, broken, busy, failed, in_use, invalid,
    unsupported,
};
use crate::sys::{Errno, Error as SysError, Result as SysResult};

/// How often a request tries to mount a filesystem that the kernel fails to read, and for how long: others wait for the place.
const MOST_MOUNTS: usize = 6;
const MOUNTS_WITHIN: Duration = Duration::from_secs(1);

/// Mounts the filesystem in a volume's image so that all its files have this label, or each its own.
pub fn mount_filesystem(mut held: Held<'_>, label: Option<&SecurityContext>) -> Result<Reply, Error> {
    check_mountable(&held)?;
    set_label(&mut held, label)?;
    mount_checked(&mut held)?;
    Ok(Reply::Done)
}

/// Grows the image of a volume and, if it is mounted, the filesystem in it.
pub fn grow_filesystem(mut held: Held<'_>, size: Bytes) -> Result<Reply, Error> {
    let (volume, _) = held.existing(Kind::Filesystem)?;
    // Before anything is grown.
    check_configured(&held)?;
    let image = held.open_content(OFlags::RDONLY)?;
    check_growth(held.id, &image, volume.record.spec.size, size)?;
    if !volume.published.is_empty() || volume.device.is_some() {
        // A filesystem that has shut down, or cannot be reached, says so before its image is grown. One that was let go while
        // it was frozen still is.
        mount(&mut held)?;
    }
    let (id, (volume, _)) = (held.id, held.existing(Kind::Filesystem)?);
    let (pool, wanted) = (volume.pool.clone(), size.max(volume.record.spec.size));
    let mounted = Mounted::of(held.state, id, &pool, volume, &image).map_err(|error| cannot_grow(id, error))?;
    if let Some(mounted) = mounted.as_ref().filter(|_| !is_grown(&image, wanted)) {
        // One that its pod has frozen would keep a growth waiting.
        mounted.settle().map_err(|error| cannot_grow(id, error))?;
    }
    let reply = grow_image(&mut held, Kind::Filesystem, size)?;
    let (volume, _) = held.existing(Kind::Filesystem)?;
    let grown = || -> SysResult<()> {
        let Some(device) = volume.device else { return Ok(()) };
        held.state.loops.refresh(device.number(), volume.content)?;
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
pub fn check_mark(id: &VolumeId, volume: &Volume) -> Result<(), Error> {
    let is_marked = layout::is_filesystem(&volume.pool.served()?.attributes, id.as_str());
    let is_marked = is_marked.map_err(|error| failed("inspect the image of volume", id, error))?;
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
pub fn write_out(state: &State, id: &VolumeId, volume: &Volume, image: &OwnedFd) -> SysResult<()> {
    let Some(mounted) = Mounted::of(state, id, &volume.pool, volume, image)? else {
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
    mounted.ask(OnFilesystem::Work(Work::Sync))
}

/// Unmounts the filesystem on the device of a volume that is published nowhere, if it is kept mounted.
pub fn let_go(held: &mut Held<'_>) -> Result<(), Error> {
    let Some(volume) = held.known().filter(|volume| volume.kind() == Kind::Filesystem) else { return Ok(()) };
    let (pool, served) = (&volume.pool.config, volume.pool.served());
    let Some(device) = volume.device.filter(|_| pool.filesystems > 0) else { return served.map(drop) };
    let released = held.state.placer.on_filesystem(&pool.name, device.number(), OnFilesystem::Release);
    released.map_err(|error| match error.errno {
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
    let (pool, label, image) = (volume.pool.clone(), volume.label.clone(), held.open_content(OFlags::RDONLY));
    let Ok(image) = image else { return true };
    if pool.config.filesystems == 0 {
        return true;
    }
    let keep = || {
        let mounted = Mounted { state, id, pool: &pool, number: device.number(), image: &image };
        let (is_kept, is_frozen) = (mounted.is_kept()?, mounted.is_noted_frozen()?);
        if !is_frozen && (is_kept || !is_left) {
            return Ok(());
        }
        mounted.ask(OnFilesystem::Mount(id.clone(), label.clone()))?;
        mounted.thaw_left()?;
        if is_left || is_kept { Ok(()) } else { mounted.ask(OnFilesystem::Release) }
    };
    let Err(error) = keep() else { return true };
    if error.errno == Errno::INPROGRESS {
        return false;
    }
    log::warning!("the filesystem of a volume is out of reach until it is published anew volume={id} error={error}");
    held.change(|volume| volume.unmountable = is_lasting(error.errno));
    let mounted = Mounted { state, id, pool: &pool, number: device.number(), image: &image };
    !mounted.is_noted_frozen().unwrap_or(false)
}

/// Checks that the pool of a volume is configured for filesystems in images.
fn check_configured(held: &Held<'_>) -> Result<(), Error> {
    let (volume, _) = held.existing(Kind::Filesystem)?;
    if volume.pool.config.filesystems > 0 {
        return Ok(());
    }
    Err(unsupported(format!("volume {}: its pool is not configured for filesystems in images", held.id)))
}

/// Mounts the filesystem of a volume unless it is mounted, with the label that it had before.
pub fn mount(held: &mut Held<'_>) -> Result<(), Error> {
    check_mountable(held)?;
    mount_checked(held)
}

/// Checks what can be told of a filesystem before anything is done to it.
fn check_mountable(held: &Held<'_>) -> Result<(), Error> {
    let (volume, _) = held.existing(Kind::Filesystem)?;
    if held.state.loops.is_silent(held.id) {
        return Err(busy(format!("volume {} has a device that has not answered; try again", held.id)));
    }
    held.check_content()?;
    check_mark(held.id, volume)?;
    check_configured(held)
}

fn mount_checked(held: &mut Held<'_>) -> Result<(), Error> {
    let (volume, _) = held.existing(Kind::Filesystem)?;
    let is_published = !volume.published.is_empty();
    let before = mounted_before(held, is_published)?;
    if before.is_some() && is_published {
        return Ok(());
    }
    use_first(held, mount_anew)
}

/// Mounts the filesystem of a volume unless it is mounted, at its present size and with the directory that is published.
fn mount_anew(held: &mut Held<'_>) -> Result<(), Error> {
    let (volume, _) = held.existing(Kind::Filesystem)?;
    let (pool, spec, is_published) = (volume.pool.clone(), volume.record.spec, !volume.published.is_empty());
    let VolumeKind::Filesystem { mode, .. } = spec.kind else { return Err(invalid("it has no filesystem")) };
    let device = match volume.device {
        Some(device) => device,
        None => attach(held, BlockSize::B4096, false)?,
    };
    let content = held.known().map(|volume| volume.content);
    let label = held.known().and_then(|volume| volume.label.clone());
    let image = held.open_content(OFlags::RDONLY)?;
    let mounted = || -> SysResult<()> {
        let mounted = Mounted { state: held.state, id: held.id, pool: &pool, number: device.number(), image: &image };
        let is_kept = mounted.is_kept()?;
        if !is_kept || !is_published {
            // The image may have grown since.
            content.map_or(Ok(()), |image| held.state.loops.refresh(device.number(), image))?;
        }
        if !is_kept {
            mounted.mount(label.as_ref())?;
        }
        mounted.thaw_left()?;
        // Whatever was interrupted in the filesystem's life before is made up for now. What needs nothing is not changed: a
        // pod may have left it frozen, and nobody can thaw it before it is published.
        if is_published {
            return Ok(());
        }
        mounted.grow_unless_frozen(held.id, spec.size)?;
        mounted.ask(OnFilesystem::Prepare(mode.get()))
    };
    let failure = mounted().err();
    // The label may be what is refused only where there is a filesystem. That tells nothing of the filesystem.
    let may_be_the_label = |error: &SysError| is_of_label(error) && template::most(&image).is_ok_and(|most| most > 0);
    let refused = label.filter(|_| failure.as_ref().is_some_and(may_be_the_label));
    if refused.is_none() {
        let errno = failure.as_ref().and_then(|error| is_lasting(error.errno));
        held.change(|volume| volume.unmountable = errno);
    }
    let Some(error) = failure else { return Ok(()) };
    if error.errno == Errno::INPROGRESS {
        return Err(busy(format!(
            "the filesystem of volume {} is being mounted: the kernel makes up for what was left unfinished in it; try again",
            held.id
        )));
    }
    if !is_published {
        // If this fails too, the device stays attached, which the next attempt finds.
        let _ = detach(held);
    }
    match refused {
        Some(label) => Err(label_refused(held, &label, &error)),
        None => Err(of_copy(held, cannot_mount(held.id, error))),
    }
}

/// Says of a volume that began as a copy, and cannot be mounted, where that content still is: whoever has restored it to give
/// up what it was copied from must know before that.
fn of_copy(held: &Held<'_>, error: Error) -> Error {
    let Some(origin) = held.known().and_then(|volume| volume.origin.as_deref()) else { return error };
    let source = &origin.source;
    let advice = match held.state.volumes.get(source) {
        Some(_) => format!("{source}, of which it is a copy, is unchanged: keep it, and make another copy"),
        None => format!("{source}, of which it is a copy, does not exist any more"),
    };
    Error::new(error.kind, format!("{error}; {advice}; see docs/snapshots.md, Verify a snapshot"))
}

/// Returns the device of a volume if what is mounted on it answers. Otherwise what is in the way of a new mount is gone,
/// unless the volume is published: then it must be unpublished first.
fn mounted_before(held: &mut Held<'_>, is_published: bool) -> Result<Option<Device>, Error> {
    let id = held.id;
    let Some(attached) = attached(held)? else {
        if is_published {
            return Err(in_use(format!(
                "volume {id} is published on a device that is no longer bound to its image; unpublish it everywhere first"
            )));
        }
        return detach(held).map(|()| None);
    };
    let device = lend(held, &attached)?.device();
    let Some(volume) = held.known() else { return Ok(None) };
    let found = held.state.placer.figures(&volume.pool.config.name, device.number());
    let failure = |figures: Figures| figures.failure.map(Errno::from_raw_os_error);
    match found.map_err(|error| cannot_mount(id, error))?.map(failure) {
        Some(None) => {
            let (pool, image) = (volume.pool.clone(), held.open_content(OFlags::RDONLY)?);
            let mounted = Mounted { state: held.state, id, pool: &pool, number: device.number(), image: &image };
            mounted.thaw_left().map(|()| Some(device)).map_err(|error| cannot_mount(id, error))
        }
        Some(Some(errno)) if is_published => Err(Error::new(
            ErrorKind::Io(errno.raw_os_error()),
            format!(
                "the filesystem of volume {id} has shut down: {errno}; unpublish the volume everywhere, and it is mounted anew; see the kernel's log"
            ),
        )),
        // A new mount is a new beginning.
        Some(Some(_)) => detach(held).map(|()| None),
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

/// The filesystem on the device with this number, and its image.
#[derive(Debug)]
pub struct Mounted<'a> {
    state: &'a State,
    /// The volume's id.
    pub id: &'a VolumeId,
    pool: &'a Pool,
    number: u32,
    image: &'a OwnedFd,
}

impl<'a> Mounted<'a> {
    /// That of a volume in this pool, if it is mounted.
    pub fn of(
        state: &'a State,
        id: &'a VolumeId,
        pool: &'a Pool,
        volume: &Volume,
        image: &'a OwnedFd,
    ) -> SysResult<Option<Self>> {
        let Some(device) = volume.device.filter(|_| pool.config.filesystems > 0) else { return Ok(None) };
        let mounted = Self { state, id, pool, number: device.number(), image };
        Ok(if mounted.is_kept()? { Some(mounted) } else { None })
    }

    fn is_kept(&self) -> SysResult<bool> {
        self.state.placer.figures(&self.pool.config.name, self.number).map(|figures| figures.is_some())
    }

    fn note_frozen(&self, is_frozen: bool) -> SysResult<()> {
        layout::note_frozen(self.attributes()?, self.id, is_frozen)
    }

    fn is_noted_frozen(&self) -> SysResult<bool> {
        layout::is_noted_frozen(self.attributes()?, self.id)
    }

    fn attributes(&self) -> SysResult<&Attributes> {
        self.pool.state.as_ref().map(|served| &served.attributes).map_err(|_| SysError::of(Errno::IO))
    }

    /// Has it mounted. While the kernel removes files that were unlinked while they were open, it may take its list of them
    /// for damaged (`xfs_ifree returned error -117`), and fails with an I/O error. What it has removed by then stays removed,
    /// and the next mount goes on from there.
    fn mount(&self, label: Option<&SecurityContext>) -> SysResult<()> {
        let begun = Instant::now();
        let ask = || self.ask(OnFilesystem::Mount(self.id.clone(), label.cloned()));
        for _ in 1..MOST_MOUNTS {
            match ask() {
                Err(SysError { errno: Errno::IO, .. }) if begun.elapsed() < MOUNTS_WITHIN => {}
                answer => return answer,
            }
        }
        ask()
    }

    fn ask(&self, what: OnFilesystem) -> SysResult<()> {
        self.state.placer.on_filesystem(&self.pool.config.name, self.number, what)
    }

    /// Makes it as large as its image, in which it is then complete.
    fn grow(&self, size: Bytes) -> SysResult<()> {
        if is_grown(self.image, size) {
            return Ok(());
        }
        self.ask(OnFilesystem::Work(Work::Grow(size.get())))?;
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
        self.note_frozen(true)?;
        match self.ask(OnFilesystem::Work(Work::Settle)) {
            // It may be frozen for a moment still, or for ever.
            Err(SysError { errno: Errno::INPROGRESS, .. }) => Err(SysError::of(Errno::INPROGRESS)),
            settled => self.note_frozen(false).and(settled),
        }
    }

    /// Begins to freeze it, for two seconds at most, once nothing is [left frozen](Self::thaw_left_within). What has begun is to
    /// be [ended](Self::end_hold).
    pub fn begin_hold(&self) -> SysResult<Hold> {
        self.note_frozen(true)?;
        match self.state.placer.begin_hold(&self.pool.config.name, self.number) {
            // Whatever is in progress may have frozen it.
            Err(error) if error.errno != Errno::INPROGRESS => self.note_frozen(false).and(Err(error)),
            begun => begun,
        }
    }

    /// Waits until it is thawed after it was released.
    ///
    /// # Errors
    /// `TIMEDOUT` when it was not frozen until then; `INPROGRESS` when it may be frozen still.
    pub fn end_hold(&self, hold: Hold, limit: Limit) -> SysResult<()> {
        match self.state.placer.end_hold(hold, limit) {
            Err(error) if error.errno == Errno::INPROGRESS => Err(error),
            ended => self.note_frozen(false).and(ended),
        }
    }

    /// Thaws it if whoever has frozen it is gone without having said that it is not frozen any more.
    pub fn thaw_abandoned(&self, limit: Limit) -> SysResult<()> {
        if self.state.placer.is_awaited(self.number) { Ok(()) } else { self.thaw_left_within(limit) }
    }

    /// Thaws it if a helper that was killed, or that met an error, has left it frozen. While that fails, whoever writes to it
    /// waits.
    fn thaw_left(&self) -> SysResult<()> {
        self.thaw_left_within(Limit::from_now(PATIENCE))
    }

    /// As [`Self::thaw_left`], in a time that several share.
    pub fn thaw_left_within(&self, limit: Limit) -> SysResult<()> {
        if !self.is_noted_frozen()? {
            return Ok(());
        }
        match self.state.placer.thaw(&self.pool.config.name, self.number, limit) {
            // It is not frozen.
            Ok(()) | Err(SysError { errno: Errno::INVAL, .. }) => self.note_frozen(false),
            failed => failed,
        }
    }
}
