//! What `bulkheadctl doctor` and `kubectl bulkhead doctor` have looked at: what was found, and what to do.

/// Something that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What it is.
    pub name: String,
    /// How it is.
    pub outcome: Outcome,
    /// What was found; what to do if something is wrong.
    pub message: String,
}

/// How something is that was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is wrong.
    Ok,
    /// Worth knowing, but not wrong.
    Note,
    /// Something is wrong.
    Failed,
}

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
        Self { name: name.into(), outcome, message: message.into() }
    }
}
