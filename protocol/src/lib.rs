//! What the Bulkhead frontend and privhelper say to each other over a `SOCK_SEQPACKET` socket.
//!
//! Every type that carries a value from outside has a private field and one checked way in, which decoding uses as
//! well: a request with a bad volume id, target or size never reaches an operation. `PROTOCOL.md` beside this crate
//! describes the bytes for clients in other languages.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing, clippy::panic,
        clippy::unreachable, clippy::unwrap_used
    )
)]

mod bounded;
mod call;
mod checked;
mod codec;
mod condition;
mod error;
mod field;
mod hello;
pub mod kernel;
mod name;
mod number;
mod reply;
mod request;
mod security_context;
mod size;
mod target;
mod volume;
mod volume_id;
mod words;

pub use bounded::{Text, UpTo};
pub use call::{CallId, decode_request};
pub use checked::Invalid;
pub use codec::{CodecError, MAX_PACKET, decode, encode};
pub use condition::{Condition, Conditions, MAX_CONDITIONS, Separation};
pub use error::{Error, ErrorKind};
pub use field::{Field, Say};
pub use hello::{
    HIGHEST_VERSION, Hello, MAX_POOLS, MAX_PUBLISH_DIRECTORIES, Pool, PublishDirectory, Welcome, negotiate,
};
pub use name::{DriverName, PoolName, PublishName};
pub use reply::{
    Listed, MAX_LISTED, MAX_RANGES, MAX_SNAPSHOTS, PoolStatus, QuotaMode, Range, Reply, Response, Snapshot, Usage,
};
pub use request::{MAX_MEMBERS, Member, MountFlags, Pace, Request, Row, Socket};
pub use security_context::SecurityContext;
pub use size::{Bytes, Inodes, SIZE_STEP};
pub use target::{MAX_TARGET, RelativePath, TargetPath};
pub use volume::{
    BlockSize, DirectoryMode, MAX_OWNER, NameHash, Origin, OwnerRecord, SnapshotOf, VolumeKind, VolumeSpec,
};
pub use volume_id::VolumeId;
