//! Checks as they pass the socket.

use bulkhead_model::check::{Check, Outcome};

use crate::proto::inspection as wire;

impl From<Check> for wire::Check {
    fn from(Check { name, outcome, message }: Check) -> Self {
        let outcome = match outcome {
            Outcome::Ok => wire::check::Outcome::Ok,
            Outcome::Note => wire::check::Outcome::Note,
            Outcome::Failed => wire::check::Outcome::Failed,
        };
        Self { name, outcome: outcome.into(), message }
    }
}

impl From<wire::Check> for Check {
    fn from(check: wire::Check) -> Self {
        let outcome = match check.outcome() {
            wire::check::Outcome::Ok => Outcome::Ok,
            wire::check::Outcome::Note => Outcome::Note,
            wire::check::Outcome::Failed => Outcome::Failed,
        };
        Self { name: check.name, outcome, message: check.message }
    }
}
