//! Requests: ids and targets only, never a host path, a device number, a flag word or a file descriptor.

use serde::{Deserialize, Serialize};

use crate::field::{Field, Say};
use crate::{Bytes, Inodes, NameHash, OwnerRecord, PoolName, SecurityContext, TargetPath, UpTo, VolumeId, VolumeSpec};

/// How a directory volume is mounted. `nosuid` and `nodev` are always on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountFlags {
    /// No writes through this mount.
    pub read_only: bool,
    /// No programs can be run from it.
    pub no_exec: bool,
    /// Access times are not updated.
    pub no_atime: bool,
    /// Access times of directories are not updated.
    pub no_diratime: bool,
}

/// The two sockets that the helper makes for the frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Socket {
    /// The CSI endpoint.
    Csi,
    /// The kubelet's plugin registration.
    Registration,
}

/// The most volumes of which snapshots are taken at one moment.
pub const MAX_MEMBERS: usize = 12;

/// One of several volumes of which snapshots are taken at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The volume.
    pub volume: VolumeId,
    /// Its snapshot.
    pub snapshot: VolumeId,
}

/// What a request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Nothing that takes long.
    Prompt,
    /// The disk: it allocates space, or is done only once its changes are on disk.
    Disk,
    /// The disk, and there may be hundreds at a time, none of them urgent.
    Background,
    /// The filesystem, for longer the more extents or holes an image has: that is up to whoever writes to it.
    Extents,
    /// What a tenant has left unfinished in a filesystem of its own, or has yet to be written out of memory.
    Content,
    /// What has yet to be written out of memory to a device.
    Device,
}

/// What is known of a request whatever its fields are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The variant of [`Request`].
    pub variant: &'static str,
    /// Its name in messages and logs.
    pub name: &'static str,
    /// The protocol version that introduced it. It is never sent where a lower one is in use.
    pub since_version: u16,
    /// What it waits for.
    pub pace: Pace,
    /// Whether it changes anything.
    pub changes: bool,
}

/// The table of requests. A request is one row: its variant, its name, the version that introduced it, what it waits
/// for, whether it changes anything, and its fields. The types of the fields say the rest: see
/// [`Field`](crate::field::Field).
macro_rules! requests {
    ($(
        $(#[$doc:meta])*
        $variant:ident $name:literal, since $version:literal, $pace:ident, $effect:ident {
            $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
        }
    )*) => {
        /// Everything that a client can request. A released variant never changes; a change is a new variant at the
        /// end.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Request {
            $($(#[$doc])* $variant { $($(#[$field_doc])* $field: $type,)* },)*
        }

        impl Request {
            /// All rows, in the order of the variants.
            pub const ROWS: &'static [Row] = &[$(requests!(@row $variant $name $version $pace $effect)),*];

            /// Its row.
            pub fn row(&self) -> &'static Row {
                match self {
                    $(Self::$variant { .. } => const { &requests!(@row $variant $name $version $pace $effect) },)*
                }
            }

            fn each_field<'a>(&'a self, act: &mut dyn FnMut(&'static str, &'a dyn Field)) {
                match self { $(Self::$variant { $($field),* } => { $(act(stringify!($field), $field);)* })* }
            }
        }
    };
    (@row $variant:ident $name:literal $version:literal $pace:ident $effect:ident) => {
        Row {
            variant: stringify!($variant),
            name: $name,
            since_version: $version,
            pace: Pace::$pace,
            changes: requests!(@$effect),
        }
    };
    (@changes) => { true };
    (@reads) => { false };
}

requests! {
    /// Creates a volume. One that already exists with the same settings is taken to be the same volume.
    Create "create", since 1, Disk, changes {
        /// The volume.
        volume: VolumeId,
        /// The pool to create it in.
        pool: PoolName,
        /// Its settings.
        spec: VolumeSpec,
    }
    /// Sets a directory volume's quota. A size smaller than the current one is answered with the current one.
    SetQuota "set-quota", since 1, Disk, changes {
        /// The volume.
        volume: VolumeId,
        /// The new size.
        size: Bytes,
        /// The new limit on inodes.
        inodes: Inodes,
    }
    /// Grows a block volume's image. A size smaller than the current one is answered with the current one.
    GrowImage "grow-image", since 1, Disk, changes {
        /// The volume.
        volume: VolumeId,
        /// The new size.
        size: Bytes,
    }
    /// Binds a directory volume, or the directory in a mounted filesystem of a volume, to a target.
    BindMount "bind-mount", since 1, Prompt, changes {
        /// The volume.
        volume: VolumeId,
        /// Where to mount it.
        target: TargetPath,
        /// How to mount it.
        flags: MountFlags,
        /// Refuse if the volume is published at any other target.
        exclusive: bool,
    }
    /// Undoes this and removes the target.
    Unmount "unmount", since 1, Prompt, changes {
        /// The volume.
        volume: VolumeId,
        /// Where it is published.
        target: TargetPath,
    }
    /// Attaches a block volume's image to a loop device. Does nothing if it is already attached in the same way.
    LoopAttach "loop-attach", since 1, Prompt, changes {
        /// The volume.
        volume: VolumeId,
        /// Whether the device refuses writes.
        read_only: bool,
    }
    /// Detaches a block volume's loop device, which no target may still use.
    LoopDetach "loop-detach", since 1, Device, changes {
        /// The volume.
        volume: VolumeId,
    }
    /// Makes an attached loop device take on the size of its image, which has grown.
    LoopResize "loop-resize", since 1, Prompt, changes {
        /// The volume.
        volume: VolumeId,
    }
    /// Binds the node of an attached loop device to a target.
    MakeDevice "make-device", since 1, Prompt, changes {
        /// The volume.
        volume: VolumeId,
        /// Where to bind it.
        target: TargetPath,
        /// Refuse if the volume is published at any other target.
        exclusive: bool,
    }
    /// Unmounts a device node from a target and removes the target.
    RemoveDevice "remove-device", since 1, Prompt, changes {
        /// The volume.
        volume: VolumeId,
        /// Where it is published.
        target: TargetPath,
    }
    /// A volume's settings and how much of it is used.
    Usage "usage", since 1, Prompt, reads {
        /// The volume.
        volume: VolumeId,
        /// Where it must be published to be reported; for a block volume, the kubelet's global map path will also do.
        target: Option<TargetPath>,
    }
    /// Volumes in the order of their ids.
    List "list", since 1, Prompt, reads {
        /// Begin after this id.
        after: Option<VolumeId>,
        /// The most volumes to return; one packet may hold fewer.
        limit: u16,
    }
    /// Deletes a volume that is not published. Its content is removed in the background.
    Delete "delete", since 1, Background, changes {
        /// The volume.
        volume: VolumeId,
    }
    /// Free space and conditions of a pool.
    PoolStatus "pool-status", since 1, Prompt, reads {
        /// The pool.
        pool: PoolName,
    }
    /// A listening socket, passed with the reply.
    Listen "listen", since 1, Prompt, changes {
        /// Which of the two.
        socket: Socket,
    }
    /// Deletes a volume that was never published, and refuses any other. Since version 2.
    DeleteUnused "delete-unused", since 2, Background, changes {
        /// The volume.
        volume: VolumeId,
    }
    /// Records on a volume whose it is. Since version 3.
    SetOwner "set-owner", since 3, Disk, changes {
        /// The volume.
        volume: VolumeId,
        /// The note, which replaces an earlier one.
        owner: OwnerRecord,
    }
    /// What is recorded on a volume about whose it is. Since version 3.
    Owner "owner", since 3, Prompt, reads {
        /// The volume.
        volume: VolumeId,
    }
    /// Mounts the filesystem in a volume's image, so that it can be bound to targets. Does nothing if it is mounted.
    /// Since version 4.
    MountFilesystem "mount-filesystem", since 4, Content, changes {
        /// The volume.
        volume: VolumeId,
    }
    /// Unmounts the filesystem in a volume's image, which no target may still use. Since version 4.
    UnmountFilesystem "unmount-filesystem", since 4, Content, changes {
        /// The volume.
        volume: VolumeId,
    }
    /// Grows the image of a volume with a filesystem and, if it is mounted, the filesystem. A size smaller than the
    /// current one is answered with the current one. Since version 4.
    GrowFilesystem "grow-filesystem", since 4, Content, changes {
        /// The volume.
        volume: VolumeId,
        /// The new size of the image.
        size: Bytes,
    }
    /// How many filesystems in images and inodes there are in a pool, and how many there can be. Since version 4.
    PoolCounts "pool-counts", since 4, Prompt, reads {
        /// The pool.
        pool: PoolName,
    }
    /// Takes a snapshot of a volume that has an image. One that already exists, of the same volume and with the same
    /// name, is taken to be the same snapshot. Since version 4.
    CreateSnapshot "create-snapshot", since 4, Extents, changes {
        /// The volume.
        volume: VolumeId,
        /// The snapshot.
        snapshot: VolumeId,
        /// Digest of the caller's name for the snapshot.
        name_hash: NameHash,
    }
    /// Creates a volume that begins as a copy of a snapshot, or of another volume. Since version 4.
    CreateFrom "create-from", since 4, Extents, changes {
        /// The volume.
        volume: VolumeId,
        /// The pool to create it in, which must be that of the source.
        pool: PoolName,
        /// Its settings.
        spec: VolumeSpec,
        /// The snapshot or the volume to copy.
        source: VolumeId,
    }
    /// Deletes a snapshot. Its content is removed in the background. Since version 4.
    DeleteSnapshot "delete-snapshot", since 4, Background, changes {
        /// The snapshot.
        snapshot: VolumeId,
    }
    /// Snapshots in the order of their ids. Since version 4.
    ListSnapshots "list-snapshots", since 4, Prompt, reads {
        /// Begin after this id.
        after: Option<VolumeId>,
        /// Only those taken of this volume.
        of: Option<VolumeId>,
        /// The most snapshots to return; one packet may hold fewer.
        limit: u16,
    }
    /// Where the content of a volume or snapshot comes from. Since version 4.
    Origin "origin", since 4, Prompt, reads {
        /// The volume or snapshot.
        volume: VolumeId,
    }
    /// The ranges in which a snapshot may differ from another one of the same pool, or those that hold data. Since
    /// version 4.
    Delta "delta", since 4, Disk, reads {
        /// The snapshot.
        snapshot: VolumeId,
        /// The one to compare it with; without one, what holds data is reported.
        base: Option<VolumeId>,
        /// The offset at which to begin.
        from: u64,
    }
    /// Sets how many inodes a directory volume may use, which may be fewer than before, but not fewer than it uses.
    /// Since version 4.
    SetInodes "set-inodes", since 4, Disk, changes {
        /// The volume.
        volume: VolumeId,
        /// The new limit on inodes.
        inodes: Inodes,
    }
    /// Allocates all of a sparse image, which stays allocated. Since version 4.
    Allocate "allocate", since 4, Extents, changes {
        /// The volume.
        volume: VolumeId,
    }
    /// How much of the image of a volume or snapshot is shared with others. Since version 4.
    Sharing "sharing", since 4, Disk, reads {
        /// The volume or snapshot.
        volume: VolumeId,
        /// The offset at which to begin.
        from: u64,
    }
    /// Takes a snapshot of each of several volumes, all at one moment, or none. Those that already exist are taken to be
    /// the same snapshots if they are of the same volumes and have the same name. Since version 5.
    CreateGroup "create-group", since 5, Extents, changes {
        /// The volumes, and their snapshots.
        members: UpTo<Member, MAX_MEMBERS>,
        /// Digest of the caller's name for all of them.
        name_hash: NameHash,
    }
    /// Mounts the filesystem in a volume's image, so that all its files have one label for SELinux. Does nothing if it
    /// is mounted so. Since version 5.
    MountLabelled "mount-labelled", since 5, Content, changes {
        /// The volume.
        volume: VolumeId,
        /// The label.
        context: SecurityContext,
    }
}

impl Request {
    /// Its name, for messages and logs.
    pub fn name(&self) -> &'static str {
        self.row().name
    }

    /// The protocol version that introduced it or one of its values.
    pub fn since_version(&self) -> u16 {
        let mut version = self.row().since_version;
        self.each_field(&mut |_, field| version = version.max(field.since_version()));
        version
    }

    /// The volumes that it acts on. All of them are locked, unless it only reads.
    pub fn volumes(&self) -> Vec<&VolumeId> {
        let mut volumes = Vec::new();
        self.each_field(&mut |_, field| volumes.extend(field.volumes()));
        volumes
    }

    /// The target that it is about, if it is about one.
    pub fn target(&self) -> Option<&TargetPath> {
        let mut target = None;
        self.each_field(&mut |_, field| target = target.or(field.target()));
        target
    }

    /// Logs its fields, except for its target.
    pub fn log(&self, say: &mut Say<'_>) {
        self.each_field(&mut |name, field| field.log(name, say));
    }
}
