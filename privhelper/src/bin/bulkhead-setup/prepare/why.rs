//! Why a device is not taken.

use std::fmt;
use std::path::PathBuf;

use bulkhead_privhelper::log::shown;

/// XFS takes no less.
pub const LEAST_BYTES: u64 = 300 << 20;

/// Why a device is not taken: what comes first is looked at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is of another type.
    Type(String),
    /// There is nothing in it.
    NoSize,
    /// The system is on it.
    System(Vec<PathBuf>),
    /// It is mounted.
    Mounted(PathBuf),
    /// The kernel swaps to it.
    Swap,
    /// It has these partitions.
    Partitions(Vec<String>),
    /// These devices are made of it.
    Held(Vec<String>),
    /// Its node is bound to another place.
    Bound(PathBuf),
    /// It cannot be written.
    ReadOnly,
    /// Somebody may pull it out.
    Removable,
    /// A filesystem would not fit.
    TooSmall,
    /// It is not what this option asks for.
    NotMatching(&'static str),
    /// Another program has it.
    Busy,
    /// Programs know what is on it.
    Signatures(String),
    /// Something is on it, the first at this byte.
    Data(u64),
    /// It is not the device any more that was looked at.
    Changed,
    /// It may be the successor of a disk of this pool.
    Missing(String),
    /// There is no name for its pool.
    NoName,
    /// It cannot be looked at.
    Failed(String),
}

impl fmt::Display for Why {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(kind) => write!(out, "is of type {kind}, which only --type {kind} takes"),
            Self::NoSize => write!(out, "has a size of 0: no medium, or nothing behind it"),
            Self::System(points) => {
                let points: Vec<_> = points.iter().map(|point| shown(point).to_string()).collect();
                write!(out, "the system is on it ({})", points.join(", "))
            }
            Self::Mounted(point) => write!(out, "is mounted on {}", shown(point)),
            Self::Swap => write!(out, "is swap space that is in use"),
            Self::Partitions(names) => write!(out, "has partitions ({})", names.join(", ")),
            Self::Held(names) => write!(out, "other devices are on it ({})", names.join(", ")),
            Self::Bound(point) => write!(out, "its node is mounted on {}, perhaps for a pod", shown(point)),
            Self::ReadOnly => write!(out, "is read-only"),
            Self::Removable => write!(out, "is removable"),
            Self::TooSmall => write!(out, "is smaller than {} MiB, the least for XFS", LEAST_BYTES >> 20),
            Self::NotMatching(flag) => write!(out, "does not match {flag}"),
            Self::Busy => write!(out, "another program has opened it for itself alone"),
            Self::Signatures(types) => write!(out, "has a signature ({types})"),
            Self::Data(offset) => {
                write!(out, "holds data that no program here knows, from byte {offset} on; who used it before may know")
            }
            Self::Changed => write!(out, "has changed since it was looked at: was the disk swapped?"),
            Self::Missing(pool) => write!(
                out,
                "is not taken while the disk of pool {pool} is missing; if it replaces that one, give --replace {pool}"
            ),
            Self::NoName => write!(out, "is empty, and no name is left for its pool"),
            Self::Failed(complaint) => write!(out, "cannot be looked at: {complaint}"),
        }
    }
}
