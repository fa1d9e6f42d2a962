//! The time that a bundle may take, for all that is asked for it together.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

/// How many parts the time has of which one of many may take one, so that something is left for the others.
const SHARES: u32 = 10;

/// More than anybody waits, and nothing that a clock cannot count.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Until when a bundle is made.
#[derive(Clone, Copy)]
pub struct Time {
    end: Instant,
    share: Duration,
}

impl Time {
    /// Begins it.
    pub fn begin(all: Duration) -> Self {
        let all = all.min(LONGEST);
        Self { end: Instant::now() + all, share: all / SHARES }
    }

    /// What `work` gives in the time that is left. Once there is none, it is not begun.
    pub async fn whole<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        self.until(self.end, work).await
    }

    /// What `work` gives in its share of the time, or in what is left.
    pub async fn share<T>(&self, work: impl Future<Output = T>) -> Result<T, String> {
        self.until(self.end.min(Instant::now() + self.share), work).await
    }

    async fn until<T>(&self, end: Instant, work: impl Future<Output = T>) -> Result<T, String> {
        if self.is_over() {
            return Err("it was not asked for: the time of --within was over".to_owned());
        }
        timeout_at(end, work).await.map_err(|_| match self.is_over() {
            true => "it was not there when the time of --within was over".to_owned(),
            false => format!("it was not there after {} s, its share of --within", self.share.as_secs()),
        })
    }

    /// Whether none is left.
    pub fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn what_hangs_takes_no_more_than_its_share_and_nothing_is_asked_for_when_the_time_is_over() {
        let time = Time { end: Instant::now() + HOUR, share: Duration::ZERO };
        assert!(time.share(pending::<()>()).await.unwrap_err().contains("after 0 s, its share of --within"));
        assert_eq!(time.whole(async { 1 }).await, Ok(1));
        assert!(!time.is_over());
        let time = Time { end: Instant::now() + Duration::from_millis(20), share: HOUR };
        assert!(time.share(pending::<()>()).await.unwrap_err().contains("the time of --within was over"));
        let unasked = time.whole(async { panic!("it is asked for") }).await.unwrap_err();
        assert!(unasked.contains("was not asked for") && time.is_over(), "{unasked}");
    }

    #[test]
    fn no_time_is_too_long() {
        assert!(!Time::begin(Duration::MAX).is_over());
    }
}
