//! The use cases on volumes, one per file, whichever interface calls them.
//!
//! A use case takes validated values, sends requests to the helper, undoes earlier steps when a later one fails, and
//! reports the outcome. Each may be repeated. None may be abandoned halfway: callers run them to completion.

mod capacity;
mod conditions;
mod copy;
mod cost;
mod delete;
mod fault;
mod groups;
mod grow;
mod health;
mod in_flight;
mod inspect;
mod kinds;
mod list;
mod modify;
mod optional;
mod owner;
mod pool_watch;
mod provision;
mod publish;
mod ranges;
mod snapshots;
mod stuck;
mod target;
mod usage;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bulkhead_model::volumes::{Fault, FaultKind};
use bulkhead_protocol::{ErrorKind, PoolName, TargetPath, VolumeId};

use crate::helper::Helper;
use conditions::Conditions;
use kinds::Kinds;
use optional::Optional;
pub use optional::Unseen;
use pool_watch::Measurements;
use stuck::Stuck;

pub use capacity::{Capacity, Room};
pub use conditions::{Abnormal, Health, Orphan, beyond};
pub use copy::Source;
pub use cost::{Cost, Told};
pub use groups::Group;
pub use health::Report;
pub use in_flight::{Guard, InFlight};
pub use inspect::{Inspected, PoolState};
pub use list::Page;
pub use provision::NewVolume;
pub use ranges::Wanted;
pub use usage::{Condition, Measured};

/// The volumes of this node.
#[derive(Clone)]
pub struct Volumes {
    helper: Helper,
    in_flight: InFlight,
    kinds: Kinds,
    conditions: Conditions,
    measurements: Measurements,
    optional: Optional,
    stuck: Stuck,
    /// Whether some pool could copy volumes when that was last asked.
    copies: Arc<AtomicBool>,
}

impl Volumes {
    /// The volumes managed by `helper`.
    pub fn new(helper: Helper) -> Self {
        let (conditions, measurements) = (Conditions::default(), Measurements::default());
        let (optional, stuck) = (Optional::default(), Stuck::default());
        Self {
            helper,
            in_flight: InFlight::default(),
            kinds: Kinds::default(),
            conditions,
            measurements,
            optional,
            stuck,
            copies: Arc::default(),
        }
    }

    /// These volumes on a node that may lack these pools, while no more than this is known of what is in them.
    #[must_use]
    pub fn with_optional_pools(mut self, pools: impl IntoIterator<Item = PoolName>, unseen: Unseen) -> Self {
        self.optional = Optional::new(pools, unseen);
        self
    }

    /// These volumes, for an agent: what it does, it does again later, and while it waits for an operation on one volume,
    /// it cannot work on another.
    #[must_use]
    pub fn for_agent(mut self) -> Self {
        self.in_flight = self.in_flight.impatient();
        self
    }

    /// Waits until no operation on a volume is in progress.
    pub async fn idle(&self) {
        self.in_flight.idle().await;
    }

    /// Checks that the helper answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn probe(&self) -> Result<(), Fault> {
        Ok(self.helper.probe().await?)
    }

    /// The target at `path`. A path outside all publish directories makes the request invalid only if the volume
    /// exists, since the id is judged before the path.
    async fn target(&self, volume: &VolumeId, path: &str) -> Result<TargetPath, Fault> {
        let welcome = self.helper.welcome().await?;
        match target::resolve(path, welcome.publish_directories.as_slice()) {
            Ok(target) => Ok(target),
            Err(foreign) => {
                self.helper.usage(volume, None).await?;
                Err(foreign)
            }
        }
    }

    /// The target at which a volume is said to be published. Nothing is published outside the publish directories.
    async fn published_at(&self, path: &str) -> Result<TargetPath, Fault> {
        let welcome = self.helper.welcome().await?;
        target::resolve(path, welcome.publish_directories.as_slice())
            .map_err(|fault| Fault::not_found(format!("no volume is published at this path: {fault}")))
    }
}

/// The volume with this id. An invalid id names no volume.
///
/// # Errors
/// When the id is invalid.
pub fn existing(volume: &str) -> Result<VolumeId, Fault> {
    volume
        .parse()
        .map_err(|error| Fault::new(FaultKind::Typed(ErrorKind::NotFound), format!("no such volume: {error}")))
}
