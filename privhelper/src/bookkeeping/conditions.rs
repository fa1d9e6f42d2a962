//! What is wrong with a pool.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bulkhead_protocol::{Condition, Conditions, UpTo};

use super::filesystem::Strays;
use super::limits::{count, too_many_volumes};
use super::release::charged;
use super::room::{Measured, Room};
use crate::state::{Pool, Served, State};
use crate::sys::quota::ProjectId;
use crate::sys::quotastate::Enforcement;
use crate::sys::{Errno, Result as SysResult};

/// How much more than the limit may be promised before that is a condition: a filesystem takes some space for itself as
/// it is used.
const TOLERANCE: u64 = 128;
/// The files that hold quotas may take this part of a filesystem.
const QUOTA_FILES: u64 = 100;

/// How a pool's filesystem is found to be.
#[derive(Debug)]
pub enum Finding {
    /// It does not answer.
    Hangs(Duration),
    /// An error has left it in this state.
    Failed(Condition),
    /// It works, and this is the room on it.
    Works(Measured, Room),
}

/// Looks at a pool's filesystem. One that is known not to answer is not asked.
pub fn hangs(served: &Served) -> Option<Duration> {
    served.filesystem.in_progress.hangs_for(Instant::now())
}

/// Everything that is wrong with a pool. Each kind of condition is there at most once, so all of them fit.
pub fn conditions(state: &State, pool: &Pool, served: &Served, finding: &Finding) -> Conditions {
    let mut found = Vec::new();
    if !state.is_confined {
        found.push(Condition::Unconfined);
    }
    found.extend(state.host.apart().map(|(directory, cause)| Condition::Apart { directory, cause }));
    let stuck = state.deletions.get(&pool.config.name).and_then(|deletions| deletions.stuck(&pool.config.name));
    match finding {
        Finding::Hangs(time) => found.push(Condition::NotAnswering { seconds: time.as_secs() }),
        Finding::Failed(condition) => found.push(condition.clone()),
        Finding::Works(measured, room) => found.extend(of_room(pool, measured, room)),
    }
    if let (Some(time), Finding::Failed(_) | Finding::Works(..)) = (stuck, finding) {
        found.push(Condition::NotAnswering { seconds: time.as_secs() });
    }
    let unserved = state.unserved.values().filter(|(unserved, _)| *unserved == pool.config.name).count();
    if unserved > 0 {
        found.push(Condition::NotServed { volumes: count(unserved) });
    }
    found.extend(too_many_volumes(state));
    let charged = charged(&state.volumes, &pool.config.name);
    if let Some(project) = charged.first().and_then(|share| share.project) {
        found.push(Condition::NotReleased { volumes: count(charged.len()), project: project.0 });
    }
    if !pool.has_quotas() {
        found.push(Condition::NotEnforced);
    } else if matches!(finding, Finding::Works(..)) {
        of_quotas(served, &mut found).unwrap_or_else(|error| {
            // Another request is already looking.
            if error.errno != Errno::BUSY {
                found.push(Condition::NotInspected { errno: error.errno.raw_os_error() });
            }
        });
    }
    found.extend(served.inherited.no_exec.then_some(Condition::NoExec));
    found.extend(served.place.is_unmounted.load(Relaxed).then_some(Condition::Unmounted));
    UpTo::try_from(found).unwrap_or_default()
}

fn of_room(pool: &Pool, measured: &Measured, room: &Room) -> Option<Condition> {
    if measured.space.lacks_inodes() {
        return Some(Condition::NoInodes);
    }
    // What is set aside for notes is not missing.
    let kept = Measured { notes: 0, ..*measured }.room(&pool.config, 0).limit.saturating_sub(room.limit);
    let tolerated = room.limit.saturating_add(kept).saturating_add(room.total / TOLERANCE);
    // Where nothing is enforced, nothing was promised for certain.
    let overpromised = room.promised > tolerated && pool.has_quotas();
    overpromised.then_some(Condition::Overpromised { promised: room.promised, limit: room.limit })
}

fn of_quotas(served: &Served, found: &mut Vec<Condition>) -> SysResult<()> {
    let (enforcement, bytes) = served.filesystem.quotas()?;
    if enforcement != Enforcement::Enforced {
        found.push(Condition::QuotasOff);
        return Ok(());
    }
    if bytes > served.filesystem.space()?.total / QUOTA_FILES {
        found.push(Condition::QuotaFiles { bytes });
    }
    let default = served.filesystem.quota(ProjectId(0))?;
    if served.filesystem.facts().is_xfs && !default.is_limited_to((0, 0)) {
        found.push(Condition::DefaultLimits);
    }
    found.extend(evasion(&served.filesystem.strays()?));
    Ok(())
}

fn evasion(strays: &Strays) -> Option<Condition> {
    let Strays { first, bytes, inodes, more } = *strays;
    let first = first.map_or(0, |first| first.0);
    (first != 0 || more).then_some(Condition::QuotaEvasion { bytes, inodes, first, more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evasion_is_told_by_what_was_seen_and_by_what_was_not_looked_at() {
        let of = |first: Option<u32>, more| evasion(&Strays { first: first.map(ProjectId), bytes: 0, inodes: 9, more });
        assert_eq!(of(None, false), None);
        assert_eq!(of(Some(7), false), Some(Condition::QuotaEvasion { bytes: 0, inodes: 9, first: 7, more: false }));
        assert_eq!(of(None, true), Some(Condition::QuotaEvasion { bytes: 0, inodes: 9, first: 0, more: true }));
    }
}
