//! A term: one stretch of work, from the moment at which the policies are found in force until one is lost. All that
//! works in it is a task of it, so that nothing outlives it, and nothing ends unnoticed while it lasts.

use std::collections::HashMap;
use std::future::{Future, pending};
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;
use tracing::warn;

use crate::server::Shutdown;

/// How long the changes that are being carried out when a term ends may take: a helper or an API server that does not
/// answer must not keep the agent from beginning anew.
const FINISHING: Duration = Duration::from_secs(10);

/// A task that does not run any more although the term goes on.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// It returned.
    #[error("the agent's {0} ended by itself, so all of the agent's work begins anew: report this, with the log")]
    Ended(&'static str),
    /// It panicked.
    #[error("the agent's {0} failed ({1}), so all of the agent's work begins anew: report this, with the log")]
    Panicked(&'static str, JoinError),
}

/// The tasks of a term. They end with it.
#[derive(Default)]
pub struct Term {
    end: Shutdown,
    /// They carry out changes, which they complete at the end.
    controllers: JoinSet<()>,
    /// They may end at any time.
    others: JoinSet<()>,
    names: HashMap<Id, &'static str>,
}

impl Term {
    /// The signal that the term ends.
    pub fn end(&self) -> &Shutdown {
        &self.end
    }

    /// Runs a controller, which ends soon after [`Term::end`].
    pub fn control(&mut self, name: &'static str, controller: impl Future<Output = ()> + Send + 'static) {
        self.names.insert(self.controllers.spawn(controller).id(), name);
    }

    /// Runs anything else, until the end.
    pub fn run(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.names.insert(self.others.spawn(task).id(), name);
    }

    /// Waits until a task ends, which none does by itself. To be asked before the end.
    pub async fn broken(&mut self) -> Broken {
        let ended = tokio::select! {
            biased;
            Some(ended) = self.controllers.join_next_with_id() => ended,
            Some(ended) = self.others.join_next_with_id() => ended,
            else => pending().await,
        };
        let name = |id| self.names.get(&id).copied().unwrap_or("unnamed task");
        match ended {
            Ok((id, ())) => Broken::Ended(name(id)),
            Err(error) => Broken::Panicked(name(error.id()), error),
        }
    }

    /// Ends the term: nothing new begins, and changes that are being carried out are completed if that does not take
    /// too long.
    pub async fn finish(mut self) {
        self.end.begin();
        self.others.abort_all();
        let finished = async { while self.controllers.join_next().await.is_some() {} };
        if timeout(FINISHING, finished).await.is_err() {
            let seconds = FINISHING.as_secs();
            warn!(
                "some work for Kubernetes did not end within {seconds} seconds and is abandoned; it is taken up again"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_or_panics_is_noticed() {
        let mut term = Term::default();
        term.run("census", pending());
        assert!(timeout(Duration::from_millis(50), term.broken()).await.is_err());
        term.control("controller of claims", async {});
        assert_eq!(
            term.broken().await.to_string(),
            "the agent's controller of claims ended by itself, so all of the agent's work begins anew: report this, with the log"
        );
        term.run("watch of claims", async { panic!("the test wants it") });
        let why = term.broken().await.to_string();
        assert!(why.starts_with("the agent's watch of claims failed (") && why.contains("the test wants it"), "{why}");
    }

    #[tokio::test]
    async fn the_end_cuts_what_only_looks_and_completes_what_changes() {
        let mut term = Term::default();
        let (kept, cut) = oneshot::channel::<()>();
        term.run("watch of claims", async move {
            pending::<()>().await;
            drop(kept);
        });
        let (done, completed) = oneshot::channel();
        let end = term.end().clone();
        term.control("controller of claims", async move {
            end.begun().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            let _ = done.send(());
        });
        let begun = Instant::now();
        term.finish().await;
        assert!(completed.await.is_ok());
        assert!(cut.await.is_err());
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
