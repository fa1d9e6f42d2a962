//! The kinds of conditions that a pool may have: few, so that they can be labels of a metric.

use bulkhead_protocol::ErrorKind;

use super::{Fault, FaultKind};
use crate::quantity::for_people;

/// What a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionKind {
    /// Its filesystem has shut down after an error.
    ShutDown,
    /// Its filesystem has become read-only.
    ReadOnly,
    /// Its filesystem does not answer.
    NotAnswering,
    /// The helper does not serve it.
    NotServed,
    /// It answers with errors.
    Errors,
    /// Something is charged to projects that no volume has.
    QuotaEvasion,
    /// Deleted volumes whose space cannot be released.
    NotReleased,
    /// As many volumes as there may be.
    VolumeLimit,
    /// Sizes are not enforced; it is configured that way.
    NotEnforced,
    /// Anything else that the helper reports.
    Other,
}

/// How bad a condition is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The volumes of the pool do not work.
    Failure,
    /// Somebody has to look at it.
    Warning,
    /// It is meant to be so.
    Notice,
}

/// A condition of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCondition {
    /// What it is about.
    pub kind: ConditionKind,
    /// What the helper says, for people.
    pub text: String,
    /// The same without figures: a condition is the same one while they change.
    pub key: String,
}

/// How the helper puts what the kinds are about.
const REPORTED: [(&str, ConditionKind); 9] = [
    ("filesystem has shut down", ConditionKind::ShutDown),
    ("filesystem has become read-only", ConditionKind::ReadOnly),
    ("filesystem does not answer", ConditionKind::NotAnswering),
    ("filesystem has not answered", ConditionKind::NotAnswering),
    ("charged to projects that no volume has", ConditionKind::QuotaEvasion),
    ("too many projects", ConditionKind::QuotaEvasion),
    ("space cannot be released", ConditionKind::NotReleased),
    ("--max-volumes", ConditionKind::VolumeLimit),
    ("sizes are not enforced", ConditionKind::NotEnforced),
];

impl ConditionKind {
    /// Its name in metrics and in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::ShutDown => "shut_down",
            Self::ReadOnly => "read_only",
            Self::NotAnswering => "not_answering",
            Self::NotServed => "not_served",
            Self::Errors => "errors",
            Self::QuotaEvasion => "quota_evasion",
            Self::NotReleased => "not_released",
            Self::VolumeLimit => "volume_limit",
            Self::NotEnforced => "not_enforced",
            Self::Other => "other",
        }
    }
}

impl PoolCondition {
    /// A condition that the helper reports.
    pub fn reported(text: &str) -> Self {
        let found = REPORTED.into_iter().find(|(part, _)| text.contains(part));
        Self::new(found.map_or(ConditionKind::Other, |(_, kind)| kind), text)
    }

    fn new(kind: ConditionKind, text: &str) -> Self {
        Self { kind, text: for_people(text), key: without_figures(text) }
    }

    /// What it means for a pool that the helper answers a question about it with `fault`; nothing, if that is not about
    /// the pool.
    pub fn of_fault(fault: &Fault) -> Option<Self> {
        let kind = match fault.kind {
            FaultKind::Typed(ErrorKind::PoolBroken) => ConditionKind::NotServed,
            FaultKind::Typed(ErrorKind::Io(_)) => ConditionKind::Errors,
            _ => return None,
        };
        Some(Self::new(kind, &fault.to_string()))
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        match self.kind {
            ConditionKind::ShutDown
            | ConditionKind::ReadOnly
            | ConditionKind::NotAnswering
            | ConditionKind::NotServed
            | ConditionKind::Errors => Severity::Failure,
            ConditionKind::QuotaEvasion
            | ConditionKind::NotReleased
            | ConditionKind::VolumeLimit
            | ConditionKind::Other => Severity::Warning,
            ConditionKind::NotEnforced => Severity::Notice,
        }
    }
}

fn without_figures(condition: &str) -> String {
    let mut text = String::with_capacity(condition.len());
    for character in condition.chars() {
        match character.is_ascii_digit() {
            true if text.ends_with('N') => {}
            true => text.push('N'),
            false => text.push(character),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_do_not_make_another_condition() {
        assert_eq!(
            without_figures("4096 bytes and 7 files (the first is 4711)"),
            "N bytes and N files (the first is N)"
        );
        assert_eq!(without_figures("mounted noexec"), "mounted noexec");
    }

    #[test]
    fn what_the_helper_reports_has_a_kind() {
        for (text, kind, severity) in [
            (
                "the pool's filesystem has shut down after an error, and nothing in it",
                ConditionKind::ShutDown,
                Severity::Failure,
            ),
            (
                "the pool's filesystem has become read-only, perhaps after an error; see dmesg",
                ConditionKind::ReadOnly,
                Severity::Failure,
            ),
            (
                "its filesystem does not answer: an operation has waited for 7 seconds",
                ConditionKind::NotAnswering,
                Severity::Failure,
            ),
            (
                "deleted volumes cannot be emptied: the filesystem has not answered for 70 s",
                ConditionKind::NotAnswering,
                Severity::Failure,
            ),
            (
                "4096 bytes and 7 files are charged to projects that no volume has",
                ConditionKind::QuotaEvasion,
                Severity::Warning,
            ),
            ("deleted volumes whose space cannot be released yet: 2;", ConditionKind::NotReleased, Severity::Warning),
            (
                "sizes are not enforced in this pool: it is configured with quota=none",
                ConditionKind::NotEnforced,
                Severity::Notice,
            ),
            ("something new", ConditionKind::Other, Severity::Warning),
        ] {
            let condition = PoolCondition::reported(text);
            assert_eq!((condition.kind, condition.severity()), (kind, severity), "{text}");
        }
    }

    #[test]
    fn a_fault_of_the_caller_is_no_condition_of_the_pool() {
        let fault = |kind| Fault::new(FaultKind::Typed(kind), "text");
        assert_eq!(PoolCondition::of_fault(&fault(ErrorKind::Io(5))).unwrap().kind, ConditionKind::Errors);
        assert_eq!(PoolCondition::of_fault(&fault(ErrorKind::PoolBroken)).unwrap().kind, ConditionKind::NotServed);
        for kind in [ErrorKind::NotFound, ErrorKind::Busy] {
            assert_eq!(PoolCondition::of_fault(&fault(kind)), None);
        }
        assert_eq!(PoolCondition::of_fault(&Fault::new(FaultKind::Away, "away")), None);
    }
}
