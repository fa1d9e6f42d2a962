//! The kinds of conditions that a pool may have: few, so that they can be labels of a metric.

use bulkhead_protocol::{Condition, ConditionKind as Reported, ErrorKind};

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
    /// It has deleted volumes whose space cannot be released.
    NotReleased,
    /// It has as many volumes as it may.
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
    /// It needs attention.
    Warning,
    /// It is intended.
    Notice,
}

/// A condition of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCondition {
    /// What it is about.
    pub kind: ConditionKind,
    /// What the helper says, for people.
    pub text: String,
    /// The same without figures: a condition remains the same one while they change.
    pub key: String,
}

impl ConditionKind {
    /// All kinds.
    pub const ALL: [Self; 10] = [
        Self::ShutDown,
        Self::ReadOnly,
        Self::NotAnswering,
        Self::NotServed,
        Self::Errors,
        Self::QuotaEvasion,
        Self::NotReleased,
        Self::VolumeLimit,
        Self::NotEnforced,
        Self::Other,
    ];

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

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

    /// The same for people, where the helper's own words are not available.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::ShutDown => "its filesystem has shut down after an error",
            Self::ReadOnly => "its filesystem has become read-only",
            Self::NotAnswering => "its filesystem does not answer",
            Self::NotServed => "the helper does not serve it",
            Self::Errors => "it returns errors",
            Self::QuotaEvasion => "something is charged to projects that no volume has",
            Self::NotReleased => "deleted volumes keep space that cannot be released",
            Self::VolumeLimit => "it has as many volumes as it may",
            Self::NotEnforced => "sizes are not enforced",
            Self::Other => "it has another condition",
        }
    }

    /// How bad it is.
    pub fn severity(self) -> Severity {
        match self {
            Self::ShutDown | Self::ReadOnly | Self::NotAnswering | Self::NotServed | Self::Errors => Severity::Failure,
            Self::QuotaEvasion | Self::NotReleased | Self::VolumeLimit | Self::Other => Severity::Warning,
            Self::NotEnforced => Severity::Notice,
        }
    }
}

impl From<Reported> for ConditionKind {
    fn from(kind: Reported) -> Self {
        match kind {
            Reported::ShutDown => Self::ShutDown,
            Reported::ReadOnly => Self::ReadOnly,
            Reported::NotAnswering => Self::NotAnswering,
            Reported::QuotaEvasion => Self::QuotaEvasion,
            Reported::NotReleased => Self::NotReleased,
            Reported::VolumeLimit => Self::VolumeLimit,
            Reported::NotEnforced => Self::NotEnforced,
            Reported::Other => Self::Other,
        }
    }
}

impl PoolCondition {
    /// A condition that the helper reports.
    pub fn reported(condition: &Condition) -> Self {
        Self::new(condition.kind.into(), condition.text.as_str())
    }

    fn new(kind: ConditionKind, text: &str) -> Self {
        Self { kind, text: for_people(text), key: without_figures(text) }
    }

    /// What it means for a pool that the helper answers a question about it with `fault`; `None` if the fault is not
    /// about the pool.
    pub fn of_fault(fault: &Fault) -> Option<Self> {
        let kind = match fault.kind {
            FaultKind::Typed(ErrorKind::PoolBroken) => ConditionKind::NotServed,
            FaultKind::Typed(ErrorKind::Io(_)) => ConditionKind::Errors,
            _ => return None,
        };
        Some(Self::new(kind, &fault.to_string()))
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
    fn a_kind_has_one_name() {
        for kind in ConditionKind::ALL {
            assert_eq!(ConditionKind::named(kind.name()), Some(kind));
        }
        assert_eq!(ConditionKind::named("worn"), None);
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
