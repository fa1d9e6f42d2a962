//! Requests: ids and targets only, never a host path, a device number, a flag word or a file descriptor.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Inodes, PoolName, TargetPath, VolumeId, VolumeSpec};

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

/// Everything that a client can request. A released variant never changes; a change is a new variant at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Creates a volume. One that already exists with the same settings is taken to be the same volume.
    Create {
        /// The volume.
        volume: VolumeId,
        /// The pool to create it in.
        pool: PoolName,
        /// Its settings.
        spec: VolumeSpec,
    },
    /// Sets a directory volume's quota. A size smaller than the current one is answered with the current one.
    SetQuota {
        /// The volume.
        volume: VolumeId,
        /// The new size.
        size: Bytes,
        /// The new limit on inodes.
        inodes: Inodes,
    },
    /// Grows a block volume's image. A size smaller than the current one is answered with the current one.
    GrowImage {
        /// The volume.
        volume: VolumeId,
        /// The new size.
        size: Bytes,
    },
    /// Binds a directory volume to a target.
    BindMount {
        /// The volume.
        volume: VolumeId,
        /// Where to mount it.
        target: TargetPath,
        /// How to mount it.
        flags: MountFlags,
        /// Refuse if the volume is published at any other target.
        exclusive: bool,
    },
    /// Unmounts a directory volume from a target and removes the target.
    Unmount {
        /// The volume.
        volume: VolumeId,
        /// Where it is published.
        target: TargetPath,
    },
    /// Attaches a block volume's image to a loop device. Does nothing if it is already attached in the same way.
    LoopAttach {
        /// The volume.
        volume: VolumeId,
        /// Whether the device refuses writes.
        read_only: bool,
    },
    /// Detaches a block volume's loop device, which no target may still use.
    LoopDetach {
        /// The volume.
        volume: VolumeId,
    },
    /// Makes an attached loop device take on the size of its image, which has grown.
    LoopResize {
        /// The volume.
        volume: VolumeId,
    },
    /// Binds the node of an attached loop device to a target.
    MakeDevice {
        /// The volume.
        volume: VolumeId,
        /// Where to bind it.
        target: TargetPath,
        /// Refuse if the volume is published at any other target.
        exclusive: bool,
    },
    /// Unmounts a device node from a target and removes the target.
    RemoveDevice {
        /// The volume.
        volume: VolumeId,
        /// Where it is published.
        target: TargetPath,
    },
    /// A volume's settings and how much of it is used.
    Usage {
        /// The volume.
        volume: VolumeId,
        /// Where it must be published to be reported; for a block volume, the kubelet's global map path will also do.
        target: Option<TargetPath>,
    },
    /// Volumes in the order of their ids.
    List {
        /// Begin after this id.
        after: Option<VolumeId>,
        /// The most volumes to return; one packet may hold fewer.
        limit: u16,
    },
    /// Deletes a volume that is not published. Its content is removed in the background.
    Delete {
        /// The volume.
        volume: VolumeId,
    },
    /// Free space and condition of a pool.
    PoolStatus {
        /// The pool.
        pool: PoolName,
    },
    /// A listening socket, passed with the reply.
    Listen {
        /// Which of the two.
        socket: Socket,
    },
    /// Deletes a volume that was never published, and refuses any other. Since version 2.
    DeleteUnused {
        /// The volume.
        volume: VolumeId,
    },
}

impl Request {
    /// The request's name, for messages and logs.
    pub const fn name(&self) -> &'static str {
        self.facts().0
    }

    /// The protocol version that introduced the request. It is never sent where a lower one is in use.
    pub const fn since_version(&self) -> u16 {
        self.facts().1
    }

    /// The volume that the request is about, if it is about one.
    pub const fn volume(&self) -> Option<&VolumeId> {
        self.facts().2
    }

    /// The target that the request is about, if it is about one.
    pub const fn target(&self) -> Option<&TargetPath> {
        self.facts().3
    }

    /// Name, version, volume and target.
    const fn facts(&self) -> (&'static str, u16, Option<&VolumeId>, Option<&TargetPath>) {
        match self {
            Self::Create { volume, .. } => ("create", 1, Some(volume), None),
            Self::SetQuota { volume, .. } => ("set-quota", 1, Some(volume), None),
            Self::GrowImage { volume, .. } => ("grow-image", 1, Some(volume), None),
            Self::BindMount { volume, target, .. } => ("bind-mount", 1, Some(volume), Some(target)),
            Self::Unmount { volume, target } => ("unmount", 1, Some(volume), Some(target)),
            Self::LoopAttach { volume, .. } => ("loop-attach", 1, Some(volume), None),
            Self::LoopDetach { volume } => ("loop-detach", 1, Some(volume), None),
            Self::LoopResize { volume } => ("loop-resize", 1, Some(volume), None),
            Self::MakeDevice { volume, target, .. } => ("make-device", 1, Some(volume), Some(target)),
            Self::RemoveDevice { volume, target } => ("remove-device", 1, Some(volume), Some(target)),
            Self::Usage { volume, target } => ("usage", 1, Some(volume), target.as_ref()),
            Self::List { .. } => ("list", 1, None, None),
            Self::Delete { volume } => ("delete", 1, Some(volume), None),
            Self::PoolStatus { .. } => ("pool-status", 1, None, None),
            Self::Listen { .. } => ("listen", 1, None, None),
            Self::DeleteUnused { volume } => ("delete-unused", 2, Some(volume), None),
        }
    }
}
