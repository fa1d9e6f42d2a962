//! Which cases run beside each other, and in which slot.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Lets cases run side by side, each in a slot that no other uses at the same time, and those that must be alone one by
/// one.
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
        // Neither lock protects anything that a panic could leave inconsistent.
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
