//! What has to work before this process is ready, and why it does not yet; and what works beside that, or does not.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bulkhead_model::printable::printable;
use tokio::time::timeout;
use tracing::{info, warn};

use crate::metrics::METRICS;

/// The longest reason that is given, in bytes. It may be in another server's words.
pub const LONGEST_REASON: usize = 1024;

/// How long the helper may take to answer before it counts as not ready.
const HELPER_ANSWERS: Duration = Duration::from_secs(2);

/// A part that has to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The privileged helper answers.
    Helper,
    /// The CSI socket is served.
    Csi,
    /// The kubelet has registered the driver.
    Registration,
    /// The storage agent has found the API server, itself and its policies.
    Agent,
    /// The claims are watched.
    Claims,
    /// The storage classes are watched.
    Classes,
    /// The PersistentVolumes are watched.
    PersistentVolumes,
    /// No other agent works on the node. It is declared once one does.
    Alone,
    /// Backup programs are told what has changed. It is declared where that is wanted.
    ChangedBlocks,
}

impl Part {
    /// The parts that the storage agent adds.
    pub const OF_AGENT: [Self; 4] = [Self::Agent, Self::Claims, Self::Classes, Self::PersistentVolumes];

    /// The watch of the objects that the API calls `resource`.
    pub fn watch(resource: &str) -> Option<Self> {
        match resource {
            "persistentvolumeclaims" => Some(Self::Claims),
            "storageclasses" => Some(Self::Classes),
            "persistentvolumes" => Some(Self::PersistentVolumes),
            _ => None,
        }
    }

    /// Returns whether nothing that volumes need depends on it: the process is ready without it.
    fn is_aside(self) -> bool {
        self == Self::ChangedBlocks
    }

    fn name(self) -> &'static str {
        match self {
            Self::Helper => "helper",
            Self::Csi => "csi-socket",
            Self::Registration => "kubelet-registration",
            Self::Agent => "agent",
            Self::Claims => "watch-persistentvolumeclaims",
            Self::Classes => "watch-storageclasses",
            Self::PersistentVolumes => "watch-persistentvolumes",
            Self::Alone => "only-agent",
            Self::ChangedBlocks => "changed-blocks",
        }
    }
}

/// Which parts are ready. Clones share the same state.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Each part, with the reason why it is not ready.
    parts: BTreeMap<Part, Option<String>>,
    was_ready: bool,
}

impl Readiness {
    /// Records that `part` works.
    pub fn ready(&self, part: Part) {
        self.set(part, None);
    }

    /// Records that `part` does not work, for this reason. This is also how a part is first declared.
    pub fn not_ready(&self, part: Part, reason: impl Display) {
        self.set(part, Some(printable(&reason.to_string(), LONGEST_REASON).into_owned()));
    }

    /// Records whether the privileged helper works, by what comes of a request to it.
    pub async fn look_at_helper(&self, probed: impl Future<Output = Result<(), impl Display>>) {
        match timeout(HELPER_ANSWERS, probed).await {
            Ok(Ok(())) => self.ready(Part::Helper),
            Ok(Err(error)) => self.not_ready(Part::Helper, error),
            Err(_) => {
                let seconds = HELPER_ANSWERS.as_secs();
                self.not_ready(Part::Helper, format!("the privileged helper did not answer within {seconds} seconds"));
            }
        }
    }

    /// The parts without which it is not ready and that do not work, each with the reason.
    pub fn missing(&self) -> Vec<String> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let parts = state.parts.iter().filter(|(part, _)| !part.is_aside());
        let missing = parts.filter_map(|(part, reason)| Some((part.name(), reason.as_ref()?)));
        missing.map(|(part, reason)| format!("{part} not ready: {reason}")).collect()
    }

    /// Returns whether `part` works, or why it does not; `None` if it is not needed.
    pub fn state(&self, part: Part) -> Option<Result<(), String>> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.parts.get(&part).map(|reason| reason.clone().map_or(Ok(()), Err))
    }

    /// Returns whether `part` is needed and does not work.
    pub fn is_waiting(&self, part: Part) -> bool {
        matches!(self.state(part), Some(Err(_)))
    }

    fn set(&self, part: Part, reason: Option<String>) {
        METRICS.ready.with([part.name()]).set(if reason.is_none() { 1.0 } else { 0.0 });
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.parts.get(&part) == Some(&reason) {
            return;
        }
        let lost = reason.clone().filter(|_| state.was_ready);
        state.parts.insert(part, reason);
        let mut needed = state.parts.iter().filter(|(part, _)| !part.is_aside());
        let is_ready = needed.all(|(_, reason)| reason.is_none()) && state.parts.contains_key(&Part::Csi);
        match (is_ready, lost) {
            (true, _) if !state.was_ready => info!("ready"),
            (false, Some(reason)) => warn!(part = part.name(), "not ready: {reason}"),
            _ => {}
        }
        state.was_ready = is_ready;
    }

    /// Returns whether all parts are ready, and a line about each, in the format of the API server's own /readyz.
    pub fn report(&self) -> (bool, String) {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for (part, reason) in &state.parts {
            match reason {
                None => text += &format!("[+]{} ok\n", part.name()),
                Some(reason) if part.is_aside() => text += &format!("[!]{} not ready: {reason}\n", part.name()),
                Some(reason) => text += &format!("[-]{} not ready: {reason}\n", part.name()),
            }
        }
        text += if state.was_ready { "ready\n" } else { "not ready\n" };
        (state.was_ready, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_when_all_parts_are_and_says_which_one_is_not() {
        let readiness = Readiness::default();
        assert!(!readiness.report().0, "nothing works before it has begun");
        readiness.ready(Part::Helper);
        readiness.not_ready(Part::Registration, "the kubelet has not called");
        readiness.ready(Part::Csi);
        let (is_ready, text) = readiness.report();
        assert_eq!(
            (is_ready, text.as_str()),
            (
                false,
                "[+]helper ok\n[+]csi-socket ok\n[-]kubelet-registration not ready: the kubelet has not called\nnot ready\n"
            )
        );
        readiness.ready(Part::Registration);
        assert!(readiness.report().0 && readiness.report().1.ends_with("ok\nready\n"));
        assert!(readiness.missing().is_empty());
        readiness.not_ready(Part::Helper, "it is away");
        assert_eq!(readiness.missing(), ["helper not ready: it is away"]);
        readiness.not_ready(Part::Agent, "no\n[+]agent ok\nready");
        assert!(readiness.report().1.contains("[-]agent not ready: no\\n[+]agent ok\\nready\n"));
        assert!(!readiness.report().0 && readiness.report().1.contains("[-]helper not ready: it is away\n"));
    }

    #[test]
    fn it_is_ready_without_what_volumes_do_not_need_and_says_so() {
        let readiness = Readiness::default();
        readiness.not_ready(Part::ChangedBlocks, "there is no certificate");
        assert!(!readiness.report().0, "that says nothing about volumes");
        readiness.ready(Part::Csi);
        let told = "[+]csi-socket ok\n[!]changed-blocks not ready: there is no certificate\nready\n";
        assert_eq!(readiness.report(), (true, told.to_owned()));
        assert!(readiness.missing().is_empty() && readiness.is_waiting(Part::ChangedBlocks));
        readiness.ready(Part::ChangedBlocks);
        assert!(readiness.report().1.contains("[+]changed-blocks ok\n"));
    }
}
