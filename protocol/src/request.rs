//! Requests: ids and targets only, never a host path, a device number, a flag word or a file descriptor.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Inodes, PoolName, TargetPath, VolumeId, VolumeSpec};

/// How a directory volume is mounted. `nosuid` and `nodev` are always on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountFlags {
    /// No writes through this mount.
    pub read_only: bool,
    /// No programs are run from it.
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

/// Everything a client can ask for. A released variant never changes; a change is a new variant at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Makes a volume; one that is there with the same settings is the same volume.
    Create {
        /// The volume.
        volume: VolumeId,
        /// The pool to make it in.
        pool: PoolName,
        /// What it is to be.
        spec: VolumeSpec,
    },
    /// Sets a directory volume's quota. Less than it has is answered with what it has.
    SetQuota {
        /// The volume.
        volume: VolumeId,
        /// The new size.
        size: Bytes,
        /// The new limit on inodes.
        inodes: Inodes,
    },
    /// Grows a block volume's image. Less than it has is answered with what it has.
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
        /// Where.
        target: TargetPath,
        /// How.
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
    /// Attaches a block volume's image to a loop device; once attached the same way, this does nothing.
    LoopAttach {
        /// The volume.
        volume: VolumeId,
        /// Whether the device refuses writes.
        read_only: bool,
    },
    /// Detaches a block volume's loop device, which no target may use any more.
    LoopDetach {
        /// The volume.
        volume: VolumeId,
    },
    /// Tells an attached loop device that its image has grown.
    LoopResize {
        /// The volume.
        volume: VolumeId,
    },
    /// Binds the node of an attached loop device to a target.
    MakeDevice {
        /// The volume.
        volume: VolumeId,
        /// Where.
        target: TargetPath,
        /// Refuse if the volume is published at any other target.
        exclusive: bool,
    },
    /// Removes a device node from a target, and the target.
    RemoveDevice {
        /// The volume.
        volume: VolumeId,
        /// Where it is published.
        target: TargetPath,
    },
    /// What a volume is and how much of it is used.
    Usage {
        /// The volume.
        volume: VolumeId,
        /// Where it must be published for an answer; for a block volume also the kubelet's global map path.
        target: Option<TargetPath>,
    },
    /// Volumes in the order of their ids.
    List {
        /// Begin behind this id.
        after: Option<VolumeId>,
        /// At most so many; one packet may hold fewer.
        limit: u16,
    },
    /// Deletes a volume that is published nowhere. It is emptied in the background.
    Delete {
        /// The volume.
        volume: VolumeId,
    },
    /// Room and condition of a pool.
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
