//! What the keeper asks the placer for, and what it is answered: values only. One packet each way, as on the frontend's
//! socket; no descriptor goes in, and one may come out, that of a loop device or of a line to a child of the mounter, with a packet of its own
//! before the answer.

use std::num::NonZeroU64;

use bulkhead_protocol::{MountFlags, PoolName, PublishName, SecurityContext, TargetPath, Text, UpTo, VolumeId};
use serde::{Deserialize, Serialize};

use super::attributes::{Attribute, LONGEST};
use super::kind::Kind;
use crate::log;
use crate::mounter::Work;
use crate::sys::file::FileId;
use crate::sys::packet::Received;
use crate::sys::quota::{Look, ProjectId, ProjectQuota};
use crate::sys::{Called, Errno, Error as SysError, Result as SysResult};

/// How many quotas are asked for at once.
pub const MOST_QUOTAS: usize = 64;

/// What the placer is asked for. It checks all of it again, on the kernel's own objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Binding a volume's content to a target, which is made.
    Bind(VolumeId, Content, TargetPath, MountFlags),
    /// Unmounting this at the target of a volume of this kind, if it is mounted there, and removing the target; and whether the
    /// publish directory is joined to the host's, as far as the host's mount table says.
    Unbind(TargetPath, Kind, Option<Found>, bool),
    /// Looking at a target; and if this volume is to be published there, whether it may be.
    Look(TargetPath, Option<(VolumeId, Kind)>),
    /// Whether a mount is gone.
    IsGone(NonZeroU64),
    /// Whether a publish directory was renamed or replaced since the start.
    IsMoved(PublishName),
    /// The loop device with this number, open.
    Open(u32, Access),
    /// Doing something to a loop device.
    Command(u32, Command),
    /// What projects use and may use.
    Quotas(PoolName, Look, UpTo<ProjectId, MOST_QUOTAS>),
    /// The first project from this one on of which the filesystem knows.
    NextQuota(PoolName, Look, ProjectId),
    /// Setting the limits of a project, in bytes and inodes.
    SetQuota(PoolName, ProjectId, (u64, u64)),
    /// Something about the filesystem on a loop device.
    Filesystem(PoolName, u32, OnFilesystem),
    /// What is recorded on the marker of a pool, or on its entry of that name.
    Attribute(PoolName, Attribute, Text),
    /// Recording something on one of these.
    SetAttribute(PoolName, Attribute, Text, UpTo<u8, LONGEST>),
}

/// How a loop device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// To inspect it, by a node of its own: what is published has to stay, or the kubelet could not bind it again.
    Look,
    /// For reading, by the node that has its name.
    Read,
    /// For reading and writing, by the same.
    Write,
}

/// What is done to a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// It refuses writes, or does not.
    SetReadOnly(bool),
    /// It is as it was before others changed it.
    TakeBack,
    /// It takes on its image's length.
    Refresh,
    /// It has no node any more.
    Forget,
}

/// What is done to the filesystem on a loop device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnFilesystem {
    /// It is looked at.
    Look,
    /// It is mounted, if it is that of this volume, and kept; all its files have this label, if there is one.
    Mount(VolumeId, Option<SecurityContext>),
    /// It has the directory that is published, with this mode.
    Prepare(u16),
    /// Work of the mounter's.
    Work(Work),
    /// It is not kept any more.
    Release,
}

/// What is bound to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The volume's pool.
    pub pool: PoolName,
    /// The volume's kind.
    pub kind: Kind,
    /// Its directory, or its image.
    pub id: FileId,
    /// The number of its loop device, if it has one.
    pub device: Option<u32>,
}

/// What proves that a mount is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Proof {
    /// The kernel no longer knows its unique id.
    Id(NonZeroU64),
    /// KERNEL(6.8): nothing is mounted at the target in this very directory. Only root, who could unmount it as well,
    /// can have moved it out of there.
    Place(FileId),
}

/// What the placer answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done; a device that was asked for came before this, or a line on which to wait.
    Done,
    /// This was bound, which this will prove to be gone.
    Bound(FileId, Proof),
    /// What is at a target.
    Looked(Looked),
    /// Yes or no.
    Is(bool),
    /// In the order of the projects.
    Quotas(UpTo<ProjectQuota, MOST_QUOTAS>),
    /// A project, if there is one.
    Next(Option<(ProjectId, ProjectQuota)>),
    /// What a filesystem says, if it is kept.
    Filesystem(Option<Figures>),
    /// What is recorded, if anything is.
    Attribute(Option<UpTo<u8, LONGEST>>),
}

/// What is at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looked {
    /// The directory that holds it.
    pub parent: FileId,
    /// What is mounted there, if anything.
    pub mount: Option<Found>,
    /// What a block device there stands for, major and minor.
    pub device: Option<(u32, u32)>,
}

/// What is mounted at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    /// Its root, and what will prove that it is gone.
    Seen(FileId, Proof),
    /// It cannot be inspected: XFS fails statx(2) with `EIO` once it has shut down.
    Unreadable,
}

/// What a mounted filesystem says of itself (statfs(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// How many bytes are in use.
    pub used: u64,
    /// How many bytes are free.
    pub free: u64,
    /// How many inodes are in use.
    pub used_inodes: u64,
    /// How many inodes are free.
    pub free_inodes: u64,
    /// Why its root cannot be inspected.
    pub failure: Option<i32>,
}

/// What a child of the mounter's has answered: 0, or the kernel's error number. What is no answer ends the process.
///
/// # Errors
/// The kernel's; `INPROGRESS` if nobody is left to give one.
pub fn answered(received: SysResult<Received>, answer: [u8; 4]) -> SysResult<()> {
    match (received, i32::from_ne_bytes(answer)) {
        (Ok(Received::Packet(4)), 0) => Ok(()),
        (Ok(Received::Packet(4)), errno) => Err(Errno::from_raw_os_error(errno.clamp(1, 4095))).by("the mounter"),
        (Ok(Received::Closed) | Err(SysError { errno: Errno::CONNRESET, .. }), _) => {
            Err(Errno::INPROGRESS).by("the mounter")
        }
        (Err(error), _) => Err(error),
        (Ok(outcome), _) => end(&format!("it does not answer outcome={outcome:?}")),
    }
}

/// Ends the process: what the mounter does next is nobody's guess.
pub(super) fn end(why: &str) -> ! {
    log::last_words(&format!("the helper exits: it cannot go on with a mounter: {why}"));
    std::process::exit(1);
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Failure {
    /// It is refused.
    Refused(Refusal),
    /// A system call has failed: the error's number, and which call.
    Kernel(i32, Text),
}

/// Why something is refused: a value, of which the keeper makes a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// There is no such publish directory.
    NoPublishDirectory,
    /// There is no such pool.
    NoPool,
    /// The pool has no filesystems in images.
    NoFilesystems,
    /// Such a volume is never published at such a path.
    Shape,
    /// The kubelet's record of the target is missing.
    RecordMissing,
    /// It is longer than any that the kubelet writes.
    RecordTooLong,
    /// It is not a file of root's.
    RecordOfOthers,
    /// It is not a JSON object of strings.
    RecordMalformed,
    /// It names another driver.
    RecordOfAnotherDriver,
    /// It names another volume.
    RecordOfAnotherVolume,
    /// The directory that holds the target does not exist.
    NoParent,
    /// A symbolic link or another mount is on the way to the target.
    Crosses,
    /// Others than root may change a directory on the way: the one that is so many below the publish directory.
    OpenToOthers(u16),
    /// Something else is mounted at the target.
    Mounted,
    /// The target is a directory, and a file is wanted.
    IsDirectory,
    /// The target is a file, and a directory is wanted.
    IsFile,
    /// The target is a file with content.
    HasContent,
    /// The target is a directory that is not empty.
    NotEmpty,
    /// The target is neither a file nor a directory.
    IsOther,
    /// What is mounted at the target is in use.
    InUse,
    /// What is mounted at the target shows nothing of ours.
    OfNobody,
    /// The volume's filesystem is not mounted.
    NotMounted,
    /// Under the volume's name is something else.
    Replaced,
    /// Nothing is done where the host would not see it.
    Apart,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<SysError> for Failure {
    fn from(error: SysError) -> Self {
        Self::Kernel(error.errno.raw_os_error(), Text::new(error.call()))
    }
}
