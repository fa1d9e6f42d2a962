//! Which cases run beside each other, and in which slot.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Lets cases run side by side, each in a slot that no other uses at the same time, but nothing beside one that has to be
/// alone.
#[derive(Debug, Default)]
pub struct Turns {
    running: RwLock<()>,
    taken: Mutex<BTreeSet<usize>>,
}

/// A case may run until this is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    /// Counted from 0: the lowest that was free.
    pub slot: usize,
    turns: &'a Turns,
    _others: Others<'a>,
}

#[derive(Debug)]
enum Others<'a> {
    Run { _guard: RwLockReadGuard<'a, ()> },
    Wait { _guard: RwLockWriteGuard<'a, ()> },
}

impl Turns {
    /// Waits until a case may run.
    pub fn wait(&self, alone: bool) -> Turn<'_> {
        // No lock protects anything that a panic could leave inconsistent.
        let others = if alone {
            Others::Wait { _guard: self.running.write().unwrap_or_else(PoisonError::into_inner) }
        } else {
            Others::Run { _guard: self.running.read().unwrap_or_else(PoisonError::into_inner) }
        };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = (0..).find(|slot| !taken.contains(slot)).unwrap_or_default();
        taken.insert(slot);
        Turn { slot, turns: self, _others: others }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_slot_and_one_that_has_to_be_alone_waits_for_the_others() {
        let turns = Turns::default();
        let (first, second) = (turns.wait(false), turns.wait(false));
        assert_eq!((first.slot, second.slot), (0, 1));
        assert!(turns.running.try_write().is_err());
        drop(first);
        assert_eq!(turns.wait(false).slot, 0);
        drop(second);
        assert_eq!(turns.wait(true).slot, 0);
    }
}
