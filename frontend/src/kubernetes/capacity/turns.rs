//! One task at a time for each class, and none that waits for another class.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// The turns, by class.
#[derive(Debug, Default)]
pub struct Turns(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits for its turn with the class called `class`, which lasts until the result is dropped.
    pub async fn of(&self, class: &str) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Those of classes that are gone and that nobody waits for.
            turns.retain(|name, turn| name == class || Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(class.to_owned()).or_default())
        };
        turn.lock_owned().await
    }
}
