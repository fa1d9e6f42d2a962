//! What `bulkheadctl doctor` and `kubectl bulkhead doctor` print: what was checked, what was found, and what to do.

use serde_json::{Value, json};

pub use crate::proto::inspection::Check;
use crate::proto::inspection::check::Outcome;
use crate::report::{Report, Table};

impl Check {
    /// Nothing is wrong.
    pub fn ok(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Outcome::Ok, name, message)
    }

    /// Worth knowing, but not wrong.
    pub fn note(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Outcome::Note, name, message)
    }

    /// Something is wrong; the message says what to do.
    pub fn failed(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(Outcome::Failed, name, message)
    }

    fn new(outcome: Outcome, name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { name: name.into(), outcome: outcome.into(), message: message.into() }
    }

    fn word(&self) -> &'static str {
        match self.outcome() {
            Outcome::Ok => "ok",
            Outcome::Note => "note",
            Outcome::Failed => "FAILED",
        }
    }

    fn json(&self) -> Value {
        json!({ "name": self.name, "outcome": self.word().to_lowercase(), "message": self.message })
    }
}

/// All checks, a line each, and whether none of them failed.
pub fn report(checks: &[Check]) -> (Report, bool) {
    let healthy = checks.iter().all(|check| check.outcome() != Outcome::Failed);
    let rows = checks.iter().map(|check| [check.word().to_owned(), check.name.clone(), check.message.clone()]);
    let json = json!({ "healthy": healthy, "checks": checks.iter().map(Check::json).collect::<Vec<_>>() });
    (Report::new(json, Table::rows(rows)), healthy)
}
