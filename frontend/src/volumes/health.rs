//! The health of volumes and of pools, as orchestrators ask for it.

use std::collections::BTreeMap;
use std::ops::Bound;

use bulkhead_model::volumes::{Ailment, Fault, FaultKind, PoolCondition};
use bulkhead_protocol::{ErrorKind, VolumeId, VolumeKind};
use tokio::time::timeout;

use super::list::{Page, from_token, token_after};
use super::pool_watch::PATIENCE;
use super::{Abnormal, PoolState, Volumes};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What it is.
    pub ailment: Ailment,
    /// It and its remedy, for people.
    pub message: String,
}

impl Volumes {
    /// What `volume` suffers from: nothing, if it is healthy. It is measured, and what is known of its pool counts too.
    ///
    /// # Errors
    /// `NotFound` when there is no such volume, and nobody is known to need it.
    pub async fn health_of(&self, volume: &VolumeId) -> Result<Vec<Report>, Fault> {
        let known = self.health().borrow().volumes.get(volume).cloned();
        let measured = match self.helper.usage(volume, None).await.map_err(Fault::from) {
            Ok(usage) if matches!(usage.spec.kind, VolumeKind::Snapshot { .. }) => {
                return Err(Fault::not_found(format!("no such volume: {volume} is a snapshot")));
            }
            Ok(usage) => usage.condition.map(PoolCondition::Reported),
            Err(fault) => match (PoolCondition::of_fault(&fault), &known) {
                (Some(failure), _) => Some(failure),
                // One that was deleted has nothing any more.
                (None, Some(known)) if known.is_needed() || !fault.is(ErrorKind::NotFound) => {
                    return Ok(vec![known.report()]);
                }
                (None, _) => return Err(fault),
            },
        };
        let mut reports: Vec<_> = measured.and_then(|condition| report(&condition)).into_iter().collect();
        // What was measured before is outdated, and a volume that can be measured exists.
        let lasting = known.filter(Abnormal::outlasts_a_measurement).map(|known| known.report());
        reports.extend(lasting.filter(|lasting| reports.iter().all(|report| report.ailment != lasting.ailment)));
        Ok(reports)
    }

    /// At most `entries` of the volumes that are known to be abnormal, in the order of their ids, after `token`, which the
    /// page before returned; it is empty for the first page. No volume is measured for it.
    ///
    /// # Errors
    /// `BadToken` when no page can have returned it.
    pub fn abnormal_volumes(&self, entries: usize, token: &str) -> Result<Page<(VolumeId, Report)>, Fault> {
        let after = if token.is_empty() { Bound::Unbounded } else { Bound::Excluded(from_token(token)?) };
        let health = self.health();
        let health = health.borrow();
        let mut rest = health.volumes.range((after, Bound::Unbounded));
        let entries: Vec<_> =
            rest.by_ref().take(entries).map(|(volume, abnormal)| (volume.clone(), abnormal.report())).collect();
        let next = entries.last().filter(|_| rest.next().is_some()).map(|(last, _)| token_after(last));
        Ok(Page { entries, next })
    }

    /// What the pools suffer from, and the helper: each ailment once, with all that have it, and the worst first.
    ///
    /// # Errors
    /// `Busy` while it is not known.
    pub async fn health_of_pools(&self) -> Result<Vec<Report>, Fault> {
        let mut ailments = BTreeMap::<Ailment, Vec<String>>::new();
        let silence = || Err(Fault::new(FaultKind::Away, "the helper does not answer"));
        match timeout(PATIENCE, self.probe()).await.unwrap_or_else(|_| silence()) {
            Ok(()) => self.look_at_unknown_pools().await?,
            Err(fault) => ailments.entry(Ailment::HELPER_AWAY).or_default().push(fault.to_string()),
        }
        for (pool, conditions) in &self.health().borrow().pools {
            for Report { ailment, message } in conditions.values().filter_map(report) {
                ailments.entry(ailment).or_default().push(format!("pool {pool}: {message}"));
            }
        }
        Ok(ailments.into_iter().rev().map(|(ailment, told)| Report { ailment, message: told.join("; ") }).collect())
    }

    /// Asks for the pools' conditions where nobody has asked for them yet.
    async fn look_at_unknown_pools(&self) -> Result<(), Fault> {
        let are_known = self.health().borrow().are_pools_known;
        if are_known {
            return Ok(());
        }
        let says_nothing = |pool: &PoolState| pool.status.is_err() && pool.conditions.is_empty();
        match timeout(PATIENCE, self.pools()).await {
            Ok(Ok(pools)) if !pools.iter().any(says_nothing) => Ok(()),
            Ok(Err(fault)) => Err(fault),
            Ok(Ok(_)) | Err(_) => {
                let busy = FaultKind::Typed(ErrorKind::Busy);
                Err(Fault::new(busy, "the pools have not all answered yet: ask again"))
            }
        }
    }
}

/// The condition as it is reported; `None` where it is intended.
fn report(condition: &PoolCondition) -> Option<Report> {
    condition.ailment().map(|ailment| Report { ailment, message: condition.to_string() })
}
