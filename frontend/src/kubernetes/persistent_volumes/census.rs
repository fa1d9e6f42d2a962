//! The census: the volumes that PersistentVolumes name, and those that the pools contain, compared both ways. A volume
//! that is needed and does not exist is missing; one that is needed and not served is unserved; one that exists and is not
//! needed is an orphan. It changes none.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::mem::replace;
use std::time::Duration;

use bulkhead_protocol::{ErrorKind, Listed, VolumeId};
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::{names, orphans};
use crate::kubernetes::api::backoff::jitter;
use crate::kubernetes::api::failure::Failure;
use crate::kubernetes::context::Context;
use crate::kubernetes::intervals::Intervals;
use crate::volumes::Orphan;

/// How long what is known of orphans counts while the watched objects say nothing else. An object without labels, which
/// somebody made by hand, is found only by listing all of the cluster's.
const GOOD_FOR: Duration = Duration::from_secs(600);

/// Takes the census for as long as it is polled.
pub async fn run(context: &Context) {
    let (mut search, mut before) = (Search::default(), Seen::All);
    loop {
        let pause = match take(context, &mut search).await {
            Ok(now) => pause(&context.intervals, replace(&mut before, now), now),
            Err(failure) => {
                // What was known stays as it was.
                debug!("comparing volumes with PersistentVolumes failed: {failure}");
                failure.retry_after().unwrap_or(context.intervals.census_again)
            }
        };
        sleep(pause + jitter(pause / 4)).await;
    }
}

/// Returns how soon one is taken after one that has seen `now`. What cannot be seen is asked for soon once, not again
/// and again: the helper has a line in its log each time.
fn pause(intervals: &Intervals, before: Seen, now: Seen) -> Duration {
    if (before, now) == (Seen::All, Seen::NotAll) { intervals.census_again } else { intervals.census }
}

/// Whether a census has seen all volumes that are needed and exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    All,
    /// Some may be in pools that are not served.
    NotAll,
}

async fn take(context: &Context, search: &mut Search) -> Result<Seen, Failure> {
    // In this order: a volume is made before its object, and deleted before it.
    let needed = needed(context);
    let listed = context.volumes.list_all().await?;
    let Lacking { missing, unserved, seen } = lacking(context, needed, &listed).await?;
    context.volumes.record_missing(&missing);
    context.volumes.record_unserved(unserved);
    context.volumes.record_unseen(seen == Seen::NotAll);
    let known = context.ids_named();
    let unnamed = listed.into_iter().filter(|listed| !known.contains(listed.volume.as_str()));
    let unnamed: BTreeMap<_, _> = unnamed.map(|listed| (listed.volume.clone(), listed)).collect();
    if search.is_due(&unnamed, Instant::now()) {
        let orphans = orphans::unnamed(context).await?;
        if !orphans.is_empty() {
            // One that was never used is deleted: now, rather than at the next regular comparison.
            context.unnamed.suspect();
        }
        search.found(orphans, Instant::now());
    }
    context.volumes.record_orphans(search.orphans(unnamed));
    Ok(seen)
}

/// The volumes that watched objects name and need.
fn needed(context: &Context) -> BTreeSet<VolumeId> {
    let needed = context.volumes_named().filter(|(_, object)| names::needs_its_volume(object));
    needed.map(|(volume, _)| volume).collect()
}

/// The volumes that are needed and that no pool serves.
struct Lacking {
    /// They certainly do not exist.
    missing: BTreeSet<VolumeId>,
    /// They exist, or may exist, and are not served; why.
    unserved: BTreeMap<VolumeId, String>,
    seen: Seen,
}

/// Those of the volumes in `needed` that cannot be used. One that is not listed may still be in a pool that is not served,
/// and one that is deleted may not have been needed any more.
async fn lacking(context: &Context, needed: BTreeSet<VolumeId>, listed: &[Listed]) -> Result<Lacking, Failure> {
    let listed: HashSet<&VolumeId> = listed.iter().map(|listed| &listed.volume).collect();
    let mut lacking = Lacking { missing: BTreeSet::new(), unserved: BTreeMap::new(), seen: Seen::All };
    let mut unlisted = needed.into_iter().filter(|volume| !listed.contains(volume));
    while let Some(volume) = unlisted.next() {
        match context.volumes.measure(&volume, None).await {
            Err(fault) if fault.is(ErrorKind::NotFound) => drop(lacking.missing.insert(volume)),
            Err(fault) if fault.is(ErrorKind::PoolBroken) => {
                lacking.seen = Seen::NotAll;
                lacking.unserved.insert(volume, fault.to_string());
                // Nothing else that is not listed would get another answer, and the helper has a line in its log for each
                // question. If every pool is served, the answer is about this volume only.
                let pools = context.volumes.pools().await?;
                if let Some(Err(why)) = pools.into_iter().map(|pool| pool.status).find(Result::is_err) {
                    let why = format!("the volume is in no pool that is served: {why}");
                    lacking.unserved.extend(unlisted.by_ref().map(|volume| (volume, why.clone())));
                }
            }
            Err(fault) if fault.is(ErrorKind::Busy) => {}
            Err(fault) => return Err(fault.into()),
            Ok(_) => {}
        }
    }
    if !lacking.missing.is_empty() || !lacking.unserved.is_empty() {
        let still_needed = self::needed(context);
        lacking.missing.retain(|volume| still_needed.contains(volume));
        lacking.unserved.retain(|volume, _| still_needed.contains(volume));
    }
    Ok(lacking)
}

/// The search for orphans. What the agent watches only raises a suspicion; all objects of the cluster settle it.
#[derive(Default)]
struct Search {
    /// The volumes that were suspects last time. One that is not suspected twice in a row was being made or deleted.
    suspects: BTreeSet<VolumeId>,
    /// What all objects of the cluster have shown, and when.
    found: Option<(Instant, BTreeSet<VolumeId>)>,
}

impl Search {
    /// Returns whether all objects are to be listed, now that the watched ones do not name the volumes in `unnamed`.
    fn is_due(&mut self, unnamed: &BTreeMap<VolumeId, Listed>, now: Instant) -> bool {
        let found = self
            .found
            .as_ref()
            .filter(|(at, _)| now.saturating_duration_since(*at) < GOOD_FOR)
            .map(|(_, orphans)| orphans);
        let is_open = |volume: &VolumeId| self.suspects.contains(volume) && found.is_none_or(|it| !it.contains(volume));
        let is_due = unnamed.keys().any(is_open);
        self.suspects = unnamed.keys().cloned().collect();
        is_due
    }

    fn found(&mut self, orphans: Vec<VolumeId>, now: Instant) {
        self.found = Some((now, orphans.into_iter().collect()));
    }

    /// The orphans among the volumes in `unnamed`.
    fn orphans(&self, mut unnamed: BTreeMap<VolumeId, Listed>) -> BTreeMap<VolumeId, Orphan> {
        unnamed.retain(|volume, _| self.found.as_ref().is_some_and(|(_, orphans)| orphans.contains(volume)));
        let orphan = |(volume, listed): (_, Listed)| (volume, Orphan { pool: listed.pool, bytes: listed.size.get() });
        unnamed.into_iter().map(orphan).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(ids: &[&str]) -> BTreeMap<VolumeId, Listed> {
        let volume = |id: &&str| {
            let volume: VolumeId = id.parse().unwrap();
            let pool = "default".parse().unwrap();
            (volume.clone(), Listed { volume, pool, block: false, size: 4096.try_into().unwrap(), targets: 0 })
        };
        ids.iter().map(volume).collect()
    }

    #[test]
    fn what_cannot_be_seen_is_asked_for_soon_only_once() {
        let seen = [Seen::All, Seen::NotAll, Seen::NotAll, Seen::All, Seen::NotAll];
        let intervals = Intervals::default();
        let pauses = seen.windows(2).map(|two| pause(&intervals, two[0], two[1]));
        let Intervals { census, census_again, .. } = intervals;
        assert_eq!(pauses.collect::<Vec<_>>(), [census_again, census, census, census_again]);
    }

    #[test]
    fn all_objects_are_listed_only_for_a_new_suspect_and_from_time_to_time() {
        let (mut search, now) = (Search::default(), Instant::now());
        let ids = |ids: &[&str]| ids.iter().map(|id| id.parse().unwrap()).collect::<Vec<VolumeId>>();
        assert!(!search.is_due(&listed(&["vol-a"]), now), "it may be being made");
        assert!(search.is_due(&listed(&["vol-a"]), now));
        search.found(ids(&["vol-a"]), now);
        assert!(!search.is_due(&listed(&["vol-a"]), now));
        assert!(!search.is_due(&listed(&["vol-a", "vol-b"]), now));
        assert_eq!(search.orphans(listed(&["vol-a", "vol-b"])).len(), 1);
        assert!(search.is_due(&listed(&["vol-a", "vol-b"]), now), "one more is suspected twice");
        search.found(ids(&["vol-a", "vol-b"]), now);
        assert!(search.is_due(&listed(&["vol-b"]), now + GOOD_FOR), "somebody may have made an object for it");
        search.found(Vec::new(), now + GOOD_FOR);
        assert!(search.orphans(listed(&["vol-b"])).is_empty());
        assert!(!search.is_due(&listed(&[]), now + GOOD_FOR));
    }
}
