//! What one namespace may take of a node, as its operator has set it.

use std::fmt;
use std::str::FromStr;

use bulkhead_model::quantity::Quantity;
use bulkhead_protocol::PoolName;

use crate::volumes::Told;

/// How many volumes a node has at most, unless its helper is told otherwise (`--max-volumes`).
const VOLUMES_OF_A_NODE: u64 = 20_000;

/// A part of something, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u8);

/// The text is no share.
#[derive(Debug, thiserror::Error)]
#[error("a share is a whole number of percent from 1% to 100%, such as 25%")]
pub struct NoShare;

impl FromStr for Share {
    type Err = NoShare;

    fn from_str(text: &str) -> Result<Self, NoShare> {
        let digits = text.strip_suffix('%').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let percent = digits.and_then(|digits| digits.parse().ok()).filter(|percent| (1..=100).contains(percent));
        percent.map(Self).ok_or(NoShare)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}%", self.0)
    }
}

impl Share {
    fn of(self, all: u64) -> u64 {
        let part = u128::from(all) * u128::from(self.0) / 100;
        u64::try_from(part).unwrap_or(all)
    }
}

/// The limits of each namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The part of each pool's room, and of the filesystems in images that it may have.
    pub share: Option<Share>,
    /// How many volumes and snapshots on the node. By default it is the same part of what a node may have.
    pub volumes: Option<u32>,
}

/// An amount of what is shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes that are promised in a pool.
    pub bytes: u64,
    /// Filesystems in images, in that pool.
    pub filesystems: u64,
    /// Volumes and snapshots on the node.
    pub volumes: u64,
}

impl Limits {
    /// The most that a namespace may have of a pool of which this is told.
    pub fn most(&self, told: Told) -> Amount {
        let share_of = |all: u64| self.share.map_or(u64::MAX, |share| share.of(all));
        let volumes = self.volumes.map_or_else(|| share_of(VOLUMES_OF_A_NODE), u64::from);
        // A pool that may have few may have one for each.
        Amount { bytes: share_of(told.room), filesystems: share_of(told.filesystems.into()).max(1), volumes }
    }
}

impl Amount {
    /// Returns how much of `most` this is, by what is scarcest.
    pub fn ratio(&self, most: &Self) -> f64 {
        let parts = [(self.bytes, most.bytes), (self.filesystems, most.filesystems), (self.volumes, most.volumes)];
        parts.into_iter().map(|(part, all)| part as f64 / all.max(1) as f64).fold(0.0, f64::max)
    }
}

/// A namespace has as much as it may have, or would have more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("namespace {namespace} {what}: delete some, or ask the node's operator for a larger share")]
pub struct OverShare {
    namespace: String,
    what: String,
}

impl OverShare {
    /// Returns why `namespace`, which has `held`, may not have `wanted` in `pool`, if not more than `most` is for it.
    pub fn judge(namespace: &str, pool: &PoolName, held: &Amount, wanted: &Amount, most: &Amount) -> Option<Self> {
        let size = |bytes| Quantity::from(bytes);
        let exceeds = |held: u64, wanted: u64, most: u64| wanted > 0 && held.saturating_add(wanted) > most;
        let what = if exceeds(held.bytes, wanted.bytes, most.bytes) {
            format!(
                "may have {} of pool {pool} on this node; its other volumes and snapshots take {}, and this one takes {}",
                size(most.bytes),
                size(held.bytes),
                size(wanted.bytes)
            )
        } else if exceeds(held.filesystems, wanted.filesystems, most.filesystems) {
            format!(
                "may have {} of the filesystems in images of pool {pool} on this node, and has {}",
                most.filesystems, held.filesystems
            )
        } else if exceeds(held.volumes, wanted.volumes, most.volumes) {
            format!("may have {} volumes and snapshots on this node, and has {}", most.volumes, held.volumes)
        } else {
            return None;
        };
        Some(Self { namespace: namespace.to_owned(), what })
    }
}
