//! The number of the call that is being carried out: in this log, with each request to the helper, and so in its log too.
//! An operation of the agent is a call as well.

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub use bulkhead_protocol::CallId;

tokio::task_local! {
    static CURRENT: CallId;
}

/// The numbers begin anywhere, so that two runs of this process have different ones.
static NEXT: LazyLock<AtomicU32> = LazyLock::new(|| AtomicU32::new(RandomState::new().hash_one(()) as u32));

/// The call that is being carried out, or none.
pub fn current() -> CallId {
    CURRENT.try_with(|id| *id).unwrap_or_default()
}

/// Carries out `work` as a call of its own.
pub async fn numbered<T>(work: impl Future<Output = T>) -> T {
    // 0 stands for none.
    let number = NEXT.fetch_add(1, Relaxed).max(1);
    CURRENT.scope(CallId(number), work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_call_has_a_number_of_its_own_for_as_long_as_it_lasts() {
        assert_eq!(current(), CallId::default());
        let (one, other) = tokio::join!(
            numbered(async {
                let before = current();
                tokio::task::yield_now().await;
                assert_eq!(current(), before);
                before
            }),
            numbered(async { current() }),
        );
        assert!(one != other && one != CallId::default() && other != CallId::default(), "{one} {other}");
        assert_eq!(current(), CallId::default());
    }
}
