//! One task at a time for each class, without waiting for tasks of other classes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// The turns, by class.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits for a turn with the class called `class`. The turn lasts until the result is dropped.
    pub async fn of(&self, class: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Forget other classes that no task is working on or waiting for.
            turns.retain(|name, turn| name == class || Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(class.to_owned()).or_default())
        };
        turn.lock_owned().await
    }
}
