//! What the fields of a request mean, whatever the request: which of them lock something, and how each is logged.

use std::fmt::Display;

use crate::{
    Bytes, Inodes, MAX_MEMBERS, Member, MountFlags, NameHash, OwnerRecord, PoolName, SecurityContext, Socket,
    TargetPath, UpTo, VolumeId, VolumeKind, VolumeSpec,
};

/// Receives what there is to log of a field: a name, and a value that is short and has no special characters.
pub type Say<'a> = dyn FnMut(&'static str, &dyn Display) + 'a;

/// The type of a field.
pub trait Field {
    /// The volumes that the request acts on and therefore locks.
    fn volumes(&self) -> Vec<&VolumeId> {
        Vec::new()
    }

    /// The target that the request is about.
    fn target(&self) -> Option<&TargetPath> {
        None
    }

    /// The protocol version that introduced its value.
    fn since_version(&self) -> u16 {
        1
    }

    /// Logs the field, which is called `name`. Targets are logged elsewhere: they may be long, and hold anything.
    fn log(&self, name: &'static str, say: &mut Say<'_>);
}

impl Field for VolumeId {
    fn volumes(&self) -> Vec<&VolumeId> {
        vec![self]
    }

    fn log(&self, name: &'static str, say: &mut Say<'_>) {
        say(name, self);
    }
}

/// Where a list begins, or what another is compared with: nothing is done to that volume.
impl Field for Option<VolumeId> {
    fn log(&self, name: &'static str, say: &mut Say<'_>) {
        say(name, &self.as_ref().map_or("-", VolumeId::as_str));
    }
}

/// How many they are, and each of them.
impl Field for UpTo<Member, MAX_MEMBERS> {
    fn volumes(&self) -> Vec<&VolumeId> {
        self.as_slice().iter().flat_map(|member| [&member.volume, &member.snapshot]).collect()
    }

    fn log(&self, name: &'static str, say: &mut Say<'_>) {
        say(name, &self.as_slice().len());
        for Member { volume, snapshot } in self.as_slice() {
            say("volume", volume);
            say("snapshot", snapshot);
        }
    }
}

impl Field for TargetPath {
    fn target(&self) -> Option<&TargetPath> {
        Some(self)
    }

    fn log(&self, _: &'static str, _: &mut Say<'_>) {}
}

impl Field for Option<TargetPath> {
    fn target(&self) -> Option<&TargetPath> {
        self.as_ref()
    }

    fn log(&self, _: &'static str, _: &mut Say<'_>) {}
}

impl Field for VolumeSpec {
    fn since_version(&self) -> u16 {
        self.kind.since_version()
    }

    fn log(&self, _: &'static str, say: &mut Say<'_>) {
        say("size", &self.size);
        match self.kind {
            VolumeKind::Directory { inodes, mode } => {
                say("inodes", &inodes);
                say("mode", &mode);
            }
            VolumeKind::Image { sparse, block_size } => {
                say("sparse", &sparse);
                say("block_size", &block_size.get());
            }
            VolumeKind::Filesystem { sparse, mode } => {
                say("filesystem", &true);
                say("sparse", &sparse);
                say("mode", &mode);
            }
            VolumeKind::Snapshot { .. } => say("snapshot", &true),
        }
    }
}

/// It means nothing to a reader.
impl Field for NameHash {
    fn log(&self, _: &'static str, _: &mut Say<'_>) {}
}

impl Field for MountFlags {
    fn log(&self, _: &'static str, say: &mut Say<'_>) {
        say("read_only", &self.read_only);
        say("no_exec", &self.no_exec);
        say("no_atime", &self.no_atime);
        say("no_diratime", &self.no_diratime);
    }
}

impl Field for Socket {
    fn log(&self, name: &'static str, say: &mut Say<'_>) {
        say(name, &format_args!("{self:?}"));
    }
}

/// Only its length: its text is the client's.
impl Field for OwnerRecord {
    fn log(&self, name: &'static str, say: &mut Say<'_>) {
        say(name, &self.as_str().len());
    }
}

/// Types whose values are logged as they are.
macro_rules! plain {
    ($($type:ty),*) => {
        $(impl Field for $type {
            fn log(&self, name: &'static str, say: &mut Say<'_>) {
                say(name, self);
            }
        })*
    };
}

plain!(PoolName, Bytes, Inodes, SecurityContext, bool, u16, u64);
