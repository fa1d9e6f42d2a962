//! The state of the link to the helper, and the task that keeps reconnecting.

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
use crate::metrics::METRICS;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The state of the link to the helper.
pub(super) struct Link {
    state: Result<Arc<Welcome>, Unreachable>,
    /// How many times it has come up.
    pub(super) generation: u64,
}

impl Link {
    pub(super) fn away() -> Self {
        Self { state: Err(Unreachable::NotYet), generation: 0 }
    }

    pub(super) fn up(&self) -> Option<(Arc<Welcome>, u64)> {
        self.state.as_ref().ok().map(|welcome| (Arc::clone(welcome), self.generation))
    }

    /// Returns why the link is down. Call this only while it is.
    pub(super) fn reason(&self) -> Unreachable {
        self.state.as_ref().err().cloned().unwrap_or(Unreachable::NotYet)
    }

    /// Records that this run of the helper is gone; returns whether that was unknown until now. The reason is dropped,
    /// because it says nothing about the next run.
    pub(super) fn lose(&mut self, generation: u64) -> bool {
        let news = self.generation == generation && self.state.is_ok();
        if news {
            self.state = Err(Unreachable::Closed);
        }
        news
    }

    /// Records the welcome of a further connection to this run; returns whether it differs from the last one.
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

/// Connects whenever the link is down, for as long as `shared` exists.
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
                        error!("the privileged helper's driver name has changed: restart this process to use it");
                    }
                    METRICS.helper_connected.with([]).inc();
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
                // A request is waiting, and will not wait for long.
                () = shared.wanted.notified() => pause = FIRST_PAUSE,
            }
        }
    }
}

/// A random pause between half of `pause` and all of it, so that frontends do not reconnect in step.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(()) % 1024;
    pause / 2 + pause.mul_f64(random as f64 / 2048.0)
}
