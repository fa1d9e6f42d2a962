//! A pool and the form of what lies in it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_protocol::{Error, ErrorKind, MountFlags, PoolName, QuotaMode, VolumeSpec};
use caps::Capability;

use super::Filesystem;
use crate::sys::capability::raise;
use crate::sys::{Errno, Result as SysResult};

/// The marker file of a pool.
pub const MARKER: &str = ".bulkhead";
/// The published directory inside a directory volume.
pub const DATA: &str = "data";
/// The image inside a block volume.
pub const IMAGE: &str = "image";
/// How the name of a volume begins while it is made; a volume id never begins with a dot.
pub const MAKING: &str = ".making.";
/// How the name of a deleted volume begins until it is empty.
pub const DOOMED: &str = ".deleted.";

/// The extended attribute of a volume's own directory, which pods cannot reach, that holds its [`VolumeSpec`].
const ATTRIBUTE: &str = "trusted.bulkhead";
/// The first byte of the attribute: a volume that may hold data, or one that was never published. A helper that does not
/// know the second serves no such volume, so none is used without a word of it here.
const USED: u8 = 1;
/// See [`USED`].
const UNUSED: u8 = 2;

/// How a pool is to be served.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Its name in requests.
    pub name: PoolName,
    /// Where it is.
    pub directory: PathBuf,
    /// Whether sizes are to be enforced.
    pub quota: QuotaMode,
    /// How much of the room is promised, in thousandths.
    pub overcommit_permille: u64,
    /// How many bytes are kept unpromised.
    pub reserve: u64,
}

/// A configured pool.
#[derive(Debug)]
pub struct Pool {
    /// As configured.
    pub config: PoolConfig,
    /// What is needed to serve it, or why it is not served.
    pub state: Result<Served, String>,
}

/// A pool that is served.
#[derive(Debug)]
pub struct Served {
    /// As configured.
    pub config: PoolConfig,
    /// Its directory, open for reading (only such a descriptor can be synced).
    pub directory: OwnedFd,
    /// The filesystem it lies on.
    pub filesystem: Arc<Filesystem>,
    /// What every mount of its volumes has because the pool's own mount has it.
    pub inherited: MountFlags,
    /// What is not right, but does not keep it from being served.
    pub warnings: Vec<String>,
    /// The marker, locked: no other helper serves the pool meanwhile.
    pub _marker: OwnedFd,
}

impl Pool {
    /// The pool, if it is served.
    pub fn served(&self) -> Result<&Served, Error> {
        self.state.as_ref().map_err(|condition| {
            Error::new(ErrorKind::PoolBroken, format!("pool {} is not served: {condition}", self.config.name))
        })
    }
}

impl Served {
    /// Whether the pool's sizes are enforced by quotas.
    pub fn has_quotas(&self) -> bool {
        self.config.quota == QuotaMode::Enforced
    }
}

/// Why a volume's record cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// It cannot be read.
    Read(Errno),
    /// It is of a later layout, or damaged.
    Unknown,
}

/// Reads what was asked for from a volume's own directory, and whether the volume was never published.
pub fn read_spec(volume: impl AsFd) -> Result<(VolumeSpec, bool), SpecError> {
    let mut buffer = [0_u8; 256];
    let length = {
        let _raised = raise(Capability::CAP_SYS_ADMIN).map_err(SpecError::Read)?;
        rustix::fs::fgetxattr(volume, ATTRIBUTE, &mut buffer[..]).map_err(SpecError::Read)?
    };
    match buffer.get(..length) {
        Some([layout @ (USED | UNUSED), spec @ ..]) => {
            let spec = bulkhead_protocol::decode(spec).map_err(|_| SpecError::Unknown)?;
            Ok((spec, *layout == UNUSED))
        }
        _ => Err(SpecError::Unknown),
    }
}

/// Writes what was asked for to a volume's own directory, which must be synced then.
pub fn write_spec(volume: impl AsFd, spec: &VolumeSpec, unused: bool) -> SysResult<()> {
    let mut value = vec![if unused { UNUSED } else { USED }];
    value.extend(bulkhead_protocol::encode(spec).map_err(|_| Errno::INVAL)?);
    let _raised = raise(Capability::CAP_SYS_ADMIN)?;
    rustix::fs::fsetxattr(volume, ATTRIBUTE, &value, rustix::fs::XattrFlags::empty())
}
