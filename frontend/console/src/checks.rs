//! What `bulkheadctl doctor` and `kubectl bulkhead doctor` print.

use bulkhead_model::check::{Check, Outcome};
use serde_json::{Value, json};

use crate::report::{Report, Table};

/// All checks, a line each, and whether none of them failed.
pub fn report(checks: &[Check]) -> (Report, bool) {
    let healthy = checks.iter().all(|check| check.outcome != Outcome::Failed);
    let rows = checks.iter().map(|check| [word(check.outcome).to_owned(), check.name.clone(), check.message.clone()]);
    let json = json!({ "healthy": healthy, "checks": checks.iter().map(described).collect::<Vec<_>>() });
    (Report::new(json, Table::rows(rows)), healthy)
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Note => "note",
        Outcome::Failed => "FAILED",
    }
}

fn described(check: &Check) -> Value {
    json!({ "name": check.name, "outcome": word(check.outcome).to_lowercase(), "message": check.message })
}
