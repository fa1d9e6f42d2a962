//! Whether there is a helper, and the task that goes on looking for one.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bulkhead_protocol::Welcome;
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::Shared;
use super::connection::Connection;
use super::error::Unreachable;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What is known of the helper.
pub(super) struct Link {
    state: Result<Arc<Welcome>, Unreachable>,
    /// Counts the times it came up.
    pub(super) generation: u64,
}

impl Link {
    pub(super) fn away() -> Self {
        Self { state: Err(Unreachable::NotYet), generation: 0 }
    }

    pub(super) fn up(&self) -> Option<(Arc<Welcome>, u64)> {
        self.state.as_ref().ok().map(|welcome| (Arc::clone(welcome), self.generation))
    }

    /// Why there is none; to be asked when it is not up.
    pub(super) fn reason(&self) -> Unreachable {
        self.state.as_ref().err().cloned().unwrap_or(Unreachable::NotYet)
    }

    /// That run of the helper is of no use any more. Whether that is news. Whatever was wrong with it says nothing of
    /// the next one.
    pub(super) fn lose(&mut self, generation: u64) -> bool {
        let news = self.generation == generation && self.state.is_ok();
        if news {
            self.state = Err(Unreachable::Closed);
        }
        news
    }

    /// A further connection to that run was welcomed. Whether it says anything new.
    pub(super) fn refresh(&mut self, generation: u64, welcome: Welcome) -> bool {
        let news = self.generation == generation && self.state.as_ref().is_ok_and(|known| **known != welcome);
        if news {
            self.state = Ok(Arc::new(welcome));
        }
        news
    }

    fn come_up(&mut self, generation: u64, welcome: Welcome) {
        self.state = Ok(Arc::new(welcome));
        self.generation = generation;
    }
}

/// Connects whenever there is no helper, for as long as anybody holds `shared`.
pub(super) async fn keep(shared: Weak<Shared>) {
    let Some(mut link) = shared.upgrade().map(|shared| shared.link.subscribe()) else { return };
    let mut driver = None;
    loop {
        // Ends when the last `Helper` is dropped, and the sender with it.
        let Ok(generation) = link.wait_for(|link| link.up().is_none()).await.map(|link| link.generation + 1) else {
            return;
        };
        let mut pause = FIRST_PAUSE;
        let mut said = String::new();
        loop {
            let Some(shared) = shared.upgrade() else { return };
            match Connection::open(&shared.socket, generation).await {
                Ok((connection, welcome)) => {
                    info!(release = %welcome.release, driver = %welcome.driver, "connected to the privileged helper");
                    if driver.get_or_insert_with(|| welcome.driver.clone()) != &welcome.driver {
                        error!("the privileged helper has changed the driver's name: restart this process to follow");
                    }
                    shared.idle().push(connection);
                    shared.link.send_modify(|link| link.come_up(generation, welcome));
                    break;
                }
                Err(why) => {
                    let reason = why.to_string();
                    if reason != said {
                        warn!("waiting for the privileged helper: {reason}");
                        said = reason;
                    }
                    shared.link.send_modify(|link| link.state = Err(why));
                }
            }
            sleep(FIRST_PAUSE).await;
            tokio::select! {
                () = sleep(jittered(pause)) => pause = (pause * 2).min(LONGEST_PAUSE),
                // Somebody waits, and not for long.
                () = shared.wanted.notified() => pause = FIRST_PAUSE,
            }
        }
    }
}

/// Between half of `pause` and all of it, so that many frontends do not knock in step.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 1024;
    pause / 2 + pause.mul_f64(random as f64 / 2048.0)
}
