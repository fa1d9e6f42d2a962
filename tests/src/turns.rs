//! Which cases run beside each other, and in which slot.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// What may run beside a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Company {
    /// Nothing.
    None,
    /// Cases whose volumes have ids of their own.
    OwnIds,
    /// Whatever may run beside anything.
    Any,
}

/// Lets cases run side by side, each in a slot that no other uses at the same time, as far as they bear each other.
#[derive(Debug, Default)]
pub struct Turns {
    running: RwLock<()>,
    /// Held by a case with ids that others use as well.
    ids: Mutex<()>,
    taken: Mutex<BTreeSet<usize>>,
}

/// A case may run until this is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Counted from 0: the lowest that was free.
    pub slot: usize,
    turns: &'a Turns,
    _ids: Option<MutexGuard<'a, ()>>,
    _others: Others<'a>,
}

#[derive(Debug)]
enum Others<'a> {
    Run { _guard: RwLockReadGuard<'a, ()> },
    Wait { _guard: RwLockWriteGuard<'a, ()> },
}

impl Turns {
    /// Waits until a case may run.
    pub fn wait(&self, company: Company) -> Turn<'_> {
        // No lock protects anything that a panic could leave inconsistent.
        let ids = (company == Company::OwnIds).then(|| self.ids.lock().unwrap_or_else(PoisonError::into_inner));
        let others = if company == Company::None {
            Others::Wait { _guard: self.running.write().unwrap_or_else(PoisonError::into_inner) }
        } else {
            Others::Run { _guard: self.running.read().unwrap_or_else(PoisonError::into_inner) }
        };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = (0..).find(|slot| !taken.contains(slot)).unwrap_or_default();
        taken.insert(slot);
        Turn { slot, turns: self, _ids: ids, _others: others }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.slot);
    }
}

/// Cases in the order in which they take turns: those that may run beside anything evenly among the others, so that there
/// is always one to run, and those that nothing may run beside last, so that no other waits for them.
pub fn ordered<C>(cases: Vec<C>, company: impl Fn(&C) -> Company) -> Vec<C> {
    let (alone, rest): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| company(case) == Company::None);
    let (free, bound): (Vec<_>, Vec<_>) = rest.into_iter().partition(|case| company(case) == Company::Any);
    let (bound_count, free_count) = (bound.len(), free.len());
    let (mut bound, mut free) = (bound.into_iter(), free.into_iter());
    let mut ordered = Vec::new();
    let (mut done_bound, mut done_free) = (0, 0);
    loop {
        // Compares the shares that are done.
        let free_is_next = done_free * bound_count <= done_bound * free_count;
        let next = if free_is_next { free.next() } else { bound.next() };
        match next {
            Some(case) => ordered.push(case),
            None => break,
        }
        if free_is_next {
            done_free += 1;
        } else {
            done_bound += 1;
        }
    }
    ordered.extend(free.chain(bound).chain(alone));
    ordered
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_run_beside_anything_is_spread_over_the_run() {
        let company = |case: &u8| match case {
            0 => Company::None,
            1 => Company::Any,
            _ => Company::OwnIds,
        };
        assert_eq!(ordered(vec![0, 2, 2, 2, 2, 1, 1], company), [1, 2, 2, 1, 2, 2, 0]);
        assert_eq!(ordered(vec![1, 0, 1], company), [1, 1, 0]);
        assert_eq!(ordered(vec![2, 2], company), [2, 2]);
    }

    #[test]
    fn a_case_with_shared_ids_waits_for_the_one_before() {
        let turns = Turns::default();
        let first = turns.wait(Company::OwnIds);
        let beside = turns.wait(Company::Any);
        assert_eq!((first.slot, beside.slot), (0, 1));
        assert!(turns.ids.try_lock().is_err() && turns.running.try_write().is_err());
        drop((first, beside));
        assert_eq!(turns.wait(Company::None).slot, 0);
    }
}
