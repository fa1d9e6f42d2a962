//! The first packets of a connection, frozen forever.

use serde::{Deserialize, Serialize};

use crate::{DriverName, Error, ErrorKind, PoolName, PublishName, QuotaMode, Text, UpTo};

/// The highest version of requests and replies that this crate knows.
pub const HIGHEST_VERSION: u16 = 5;

/// The most pools one helper serves.
pub const MAX_POOLS: usize = 16;

/// The most publish directories one helper serves.
pub const MAX_PUBLISH_DIRECTORIES: usize = 16;

/// The first packet from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    magic: [u8; 8],
    /// The highest version the client knows.
    pub highest_version: u16,
}

/// The helper's answer to a [`Hello`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The version in use from here on: the lower of the two sides' highest.
    pub version: u16,
    /// The helper's release.
    pub release: Text,
    /// The CSI plugin name.
    pub driver: DriverName,
    /// Where the CSI socket appears on the host, if the helper is configured to make one.
    pub csi_socket: Text,
    /// Whether a registration socket can be requested.
    pub registers: bool,
    /// The publish directories.
    pub publish_directories: UpTo<PublishDirectory, MAX_PUBLISH_DIRECTORIES>,
    /// The pools.
    pub pools: UpTo<Pool, MAX_POOLS>,
}

/// A directory below which volumes are published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishDirectory {
    /// Its name in requests.
    pub name: PublishName,
    /// Its absolute path as seen on the host.
    pub host_path: Text,
}

/// The facts about a pool that never change while the helper runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Its name in requests.
    pub name: PoolName,
    /// Whether sizes are enforced.
    pub quota: QuotaMode,
    /// Its filesystem's type, `xfs` or `ext4`; empty if the pool is not served.
    pub filesystem: Text,
}

impl Hello {
    const MAGIC: [u8; 8] = *b"BULKHEAD";

    /// A hello from a client that knows versions up to `highest_version`.
    pub const fn new(highest_version: u16) -> Self {
        Self { magic: Self::MAGIC, highest_version }
    }
}

/// The highest version that both sides know.
///
/// # Errors
/// `Invalid` when the packet is not a hello of this protocol, or the client knows no version at all.
pub fn negotiate(hello: Hello) -> Result<u16, Error> {
    if hello.magic != Hello::MAGIC || hello.highest_version == 0 {
        let message = "hello: not a client of this protocol: the magic bytes are wrong, or the version is 0";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(hello.highest_version.min(HIGHEST_VERSION))
}
