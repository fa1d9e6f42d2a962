//! Waiting for a condition.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Waits until `check` succeeds, and returns what it returns.
pub fn until<T>(limit: Duration, mut check: impl FnMut() -> Result<T>) -> Result<T> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(2);
    loop {
        match check() {
            Ok(found) => return Ok(found),
            Err(complaint) if Instant::now() >= end => {
                bail!("still after {:.1} s: {complaint:#}", limit.as_secs_f64())
            }
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}
