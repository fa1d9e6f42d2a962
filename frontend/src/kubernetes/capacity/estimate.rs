//! Estimates of the capacity for new volumes: what the privileged helper measures, less sizes that proved impossible.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bulkhead_model::objects::storage_class;
use bulkhead_model::volumes::{Backing, Fault, FaultKind, Mode, Outlook, Parameters};
use bulkhead_protocol::PoolName;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::intervals::Intervals;
use crate::volumes::{Capacity, Room};

/// What was measured in one pass over all classes: a pool that several of them share is measured once.
pub type Measured = HashMap<(PoolName, Backing), Room>;

/// The capacity for volumes of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// How much there is.
    pub capacity: Capacity,
    /// Why there is none, if that is not a matter of room.
    pub obstacle: Option<String>,
}

impl From<Capacity> for Estimate {
    fn from(capacity: Capacity) -> Self {
        Self { capacity, obstacle: None }
    }
}

/// The estimates, by class.
#[derive(Debug, Default)]
pub struct Estimates {
    intervals: Intervals,
    /// Sizes for which no volume could be made although space was free: the filesystem may lack inodes or project ids.
    impossible: Mutex<HashMap<String, (u64, Instant)>>,
    /// Since when the helper is away.
    away: Mutex<Option<Instant>>,
}

impl Estimates {
    /// None yet.
    pub fn new(intervals: Intervals) -> Self {
        Self { intervals, ..Self::default() }
    }

    /// The capacity for volumes of `class` and this mode, if it is known. A pool that fails has none, and a node whose
    /// helper has been away for a while has none either.
    ///
    /// # Errors
    /// When the class cannot be served at all, or the helper is briefly unavailable, so that the capacity is unknown.
    pub async fn of(
        &self,
        context: &Context,
        class: &StorageClass,
        mode: Option<Mode>,
        measured: &mut Measured,
    ) -> Result<Estimate, Failure> {
        let parameters = storage_class::parameters(class)?;
        let measured = measure(context, &parameters, mode, measured).await;
        let is_away = measured.as_ref().is_err_and(|fault| fault.kind == FaultKind::Away);
        let measured = match measured {
            _ if self.is_gone(is_away, Instant::now()) => return Ok(Estimate::default()),
            Ok((pool, room)) if room.is_unsuited => {
                let why =
                    format!("pool {pool} is not configured for filesystems in images (--pool {pool}=DIR,filesystems)");
                return Ok(Estimate { capacity: room.capacity(&parameters, mode), obstacle: Some(why) });
            }
            Ok((pool, room)) => match context.cordon.check(&pool, &context.agent.node.name) {
                Ok(()) => room.capacity(&parameters, mode),
                Err(fault) => return Ok(Estimate { obstacle: Some(fault.to_string()), ..Estimate::default() }),
            },
            // Other pools are still to be reported, so this is not an error.
            Err(fault) if fault.outlook() != Outlook::Open => {
                return Ok(Estimate { obstacle: Some(fault.to_string()), ..Estimate::default() });
            }
            Err(fault) => return Err(fault.into()),
        };
        let class = class.name_any();
        let mut impossible = self.impossible();
        let Some((size, since)) = impossible.get(&class).copied() else { return Ok(measured.into()) };
        if since.elapsed() < self.intervals.ruled_out {
            let largest_volume = measured.largest_volume.min(size.saturating_sub(1));
            return Ok(Capacity { largest_volume, ..measured }.into());
        }
        impossible.remove(&class);
        // However small the difference is, a claim may be waiting for it.
        context.capacity_changed.notify_one();
        Ok(measured.into())
    }

    /// A volume of `size` bytes of the class called `class` could not be made.
    pub fn rule_out(&self, class: &str, size: u64) {
        self.impossible()
            .entry(class.to_owned())
            .and_modify(|known| *known = (known.0.min(size), Instant::now()))
            .or_insert((size, Instant::now()));
    }

    /// Returns whether the helper has been away for so long that claims should not wait for it.
    pub fn has_lost_helper(&self) -> bool {
        let away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        away.is_some_and(|since| since.elapsed() >= self.intervals.helper_away)
    }

    /// Returns whether the helper, which is away now or not, has been away for so long that it is not expected back
    /// soon.
    fn is_gone(&self, is_away: bool, now: Instant) -> bool {
        let mut away = self.away.lock().unwrap_or_else(PoisonError::into_inner);
        *away = if is_away { Some(away.unwrap_or(now)) } else { None };
        away.is_some_and(|since| now.duration_since(since) >= self.intervals.helper_away)
    }

    fn impossible(&self) -> MutexGuard<'_, HashMap<String, (u64, Instant)>> {
        self.impossible.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn measure(
    context: &Context,
    parameters: &Parameters,
    mode: Option<Mode>,
    measured: &mut Measured,
) -> Result<(PoolName, Room), Fault> {
    let pool = context.volumes.pool(parameters).await?;
    let key = (pool.clone(), parameters.backing(mode));
    if let Some(room) = measured.get(&key) {
        return Ok((pool, *room));
    }
    let room = context.volumes.room(&key.0, key.1).await?;
    measured.insert(key, room);
    Ok((pool, room))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_helper_is_gone_once_it_has_been_away_for_a_minute() {
        let (estimates, now) = (Estimates::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        assert!(!estimates.is_gone(true, now) && !estimates.is_gone(true, after(59)));
        assert!(estimates.is_gone(true, after(60)) && estimates.is_gone(true, after(90)));
        assert!(!estimates.is_gone(false, after(91)) && !estimates.is_gone(true, after(92)), "it was back");
    }
}
