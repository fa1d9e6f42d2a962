//! Figures that take many system calls to determine.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::state::{lock, lock_in_time};
use crate::sys::Result as SysResult;

/// A figure that is measured at most once per interval, by one thread at a time.
#[derive(Debug)]
pub struct Cached<T> {
    lasts: Duration,
    /// The last value, and when its measurement began.
    last: Mutex<Option<(Instant, T)>>,
    measuring: Mutex<()>,
}

impl<T: Copy> Cached<T> {
    /// Not measured yet. A measurement is valid for `lasts`.
    pub fn new(lasts: Duration) -> Self {
        Self { lasts, last: Mutex::default(), measuring: Mutex::default() }
    }

    /// The figure, or the last one known while another thread measures it: on a filesystem that hangs, that takes
    /// forever.
    ///
    /// # Errors
    /// Those of `measure`; `BUSY` when another thread takes too long over the first measurement.
    pub fn get(&self, measure: impl FnOnce() -> SysResult<T>) -> SysResult<T> {
        let begun = Instant::now();
        let turn = self.measuring.try_lock();
        if let Some((when, value)) = *lock(&self.last)
            && (turn.is_err() || begun.saturating_duration_since(when) < self.lasts)
        {
            return Ok(value);
        }
        let _turn = turn.or_else(|_| lock_in_time(&self.measuring))?;
        let value = measure()?;
        *lock(&self.last) = Some((begun, value));
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Errno, Error as SysError};

    #[test]
    fn a_figure_is_measured_again_when_it_is_old() {
        for (lasts, second) in [(Duration::MAX, Ok(1)), (Duration::ZERO, Ok(2))] {
            let cached = Cached::new(lasts);
            assert_eq!(cached.get(|| Err(SysError::of(Errno::IO))), Err(SysError::of(Errno::IO)));
            assert_eq!(cached.get(|| Ok(1)), Ok(1));
            assert_eq!(cached.get(|| Ok(2)), second);
        }
    }

    #[test]
    fn a_measurement_that_hangs_keeps_nobody_waiting() {
        let cached = Cached::new(Duration::ZERO);
        assert_eq!(cached.get(|| Ok(1)), Ok(1));
        let inner = cached.get(|| cached.get(|| panic!("two measurements at a time")));
        assert_eq!(inner, Ok(1));
        let first = Cached::<u8>::new(Duration::ZERO);
        let inner = first.get(|| first.get(|| panic!("two measurements at a time")));
        assert_eq!(inner, Err(SysError::of(Errno::BUSY)));
    }
}
